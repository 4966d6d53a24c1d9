//! Identity by key.

use crate::support::{Server, wait_for};

/// SHA-256 of `paid-secret` and of `enterprise-secret`.
const KEYS: &str = r#"
[[key]]
name = "acme"
sha256 = "PAID"
tier = "paid"

[[key]]
name = "initech"
sha256 = "ENTERPRISE"
tier = "enterprise"
rate = 1
burst = 3
"#;

fn digest(key: &str) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(key.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn server() -> (tempfile::TempDir, Server) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("keys.toml");
    let keys = KEYS.replace("PAID", &digest("paid-secret"));
    let keys = keys.replace("ENTERPRISE", &digest("enterprise-secret"));
    std::fs::write(&path, keys).expect("writable");
    let path = path.to_str().expect("text");
    let server = Server::start(&[
        "--sim-latency-ms",
        "1",
        "--identity",
        "keys",
        "--keys",
        path,
    ]);
    (directory, server)
}

#[test]
fn a_key_says_the_tier_and_the_tier_header_is_ignored() {
    let (_keys, server) = server();
    let mut client = server.connect();
    let headers = "Authorization: Bearer paid-secret\r\nX-Tier: enterprise\r\n";
    client.infer_with(headers, "x").expect_output("x");
    let nonsense = "Authorization: bearer paid-secret\r\nX-Tier: platinum\r\n";
    client.infer_with(nonsense, "x").expect_output("x");
    let paid = [("tier", "paid"), ("code", "200")];
    server.expect_count("funicular_requests_total", &paid, 2.0);
}

#[test]
fn without_a_known_key_there_is_no_answer() {
    let (_keys, server) = server();
    let mut client = server.connect();
    for headers in [
        "",
        "X-Tier: paid\r\n",
        "Authorization: Bearer nobody\r\n",
        "Authorization: Bearer paid-secre\r\n",
        "Authorization: Bearer paid-secrett\r\n",
        "Authorization: Basic paid-secret\r\n",
        "Authorization: Bearer \r\n",
        "Authorization: Bearer paid-secret\r\nAuthorization: Bearer paid-secret\r\n",
    ] {
        let response = client.infer_with(headers, "x");
        let problem = response.expect_problem(401);
        assert_eq!(response.header("WWW-Authenticate"), Some("Bearer"));
        assert!(!response.closes());
        assert!(!problem.to_string().contains("secre"), "{problem}");
    }
    // Health checks carry no key.
    assert_eq!(client.get("/v2/health/ready").status, 200);
}

#[test]
fn a_key_has_its_rate() {
    let (_keys, server) = server();
    let mut client = server.connect();
    wait_for("the rate to be used up", || {
        let response = client.infer_with("Authorization: Bearer enterprise-secret\r\n", "x");
        if response.status == 429 {
            let problem = response.expect_problem(429);
            assert_eq!(problem["reason"], "rate_limit");
            assert_eq!(response.header("Retry-After"), Some("1"));
        }
        response.status == 429
    });
    client
        .infer_with("Authorization: Bearer paid-secret\r\n", "x")
        .expect_output("x");
}
