//! Real clients, real proxies, and the load tools that people point at a server first. A machine that lacks one skips
//! its test and says so.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::support::server::PATIENT;
use crate::support::tools::{self, Listening, Reserved};
use crate::support::{Client, Server, heavy, in_parallel, light, unique};

fn url(address: SocketAddr) -> String {
    format!("http://{address}/v1/inference")
}

#[test]
fn curl_speaks_to_it_in_every_way_it_knows() {
    if !tools::is_there("curl") {
        return;
    }
    let server = Server::start(&["--sim-latency-ms", "1"]);
    let url = url(server.listen());
    let json = "Content-Type: application/json";
    // A body of more than a megabyte would make it expect 100; so does asking for it.
    let long = format!("{{\"input\": \"{}\"}}", "long ".repeat(12_000));
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("body.json");
    std::fs::write(&path, &long).expect("writable");
    let body = format!("@{}", path.display());
    let chunked = "Transfer-Encoding: chunked";
    for arguments in [
        &["-H", json, "--data-binary", body.as_str()][..],
        &[
            "-H",
            json,
            "-H",
            "Expect: 100-continue",
            "--data-binary",
            &body,
        ],
        &["-H", json, "-H", chunked, "--data-binary", &body],
        &["-H", json, "-0", "--data-binary", &body],
        &["-H", json, "--json", &body],
    ] {
        let all = [
            &["-sS", "--fail", "--max-time", "60"][..],
            arguments,
            &[&url],
        ]
        .concat();
        let answer: serde_json::Value =
            serde_json::from_str(&tools::output("curl", &all)).expect("JSON");
        assert_eq!(answer["output"], "LONG ".repeat(12_000), "{arguments:?}");
    }
    // Two requests on one connection.
    let twice = [
        "-sS",
        "-w",
        "%{num_connects} ",
        "-o",
        "/dev/null",
        "-H",
        json,
        "-d",
        "{\"input\":\"x\"}",
    ];
    let twice = [&twice[..], &["-o", "/dev/null", &url, &url]].concat();
    assert_eq!(tools::output("curl", &twice), "1 0 ");
}

#[test]
fn the_http_client_of_python_is_served() {
    if !tools::is_there("python3") {
        return;
    }
    let server = Server::start(&["--sim-latency-ms", "1"]);
    let script = r#"
import http.client, json, sys
host, port = sys.argv[1].rsplit(":", 1)
connection = http.client.HTTPConnection(host, int(port), timeout=60)
headers = {"Content-Type": "application/json"}
for number in range(100):
    text = f"from python {number} é"
    body = json.dumps({"input": text})
    if number % 2:  # an iterable is sent chunked
        body = iter([body[:7].encode(), body[7:].encode()])
    connection.request("POST", "/v1/inference", body, headers, encode_chunked=bool(number % 2))
    response = connection.getresponse()
    answer = json.loads(response.read())
    assert response.status == 200 and answer["output"] == text.upper(), answer
    socket = socket if number else connection.sock
    assert connection.sock is socket, "the connection was not kept"
connection.request("GET", "/nope")
response = connection.getresponse()
assert response.status == 404 and json.loads(response.read())["title"] == "Not Found"
print("well served")
"#;
    let script = script.replace("headers, encode_chunked=bool(number % 2)", "dict(headers, **({\"Transfer-Encoding\": \"chunked\"} if number % 2 else {})), encode_chunked=bool(number % 2)");
    let said = tools::output("python3", &["-c", &script, &server.listen().to_string()]);
    assert_eq!(said.trim(), "well served");
}

#[test]
fn fetch_of_node_is_served_on_connections_that_it_keeps() {
    if !tools::is_there("node") {
        return;
    }
    let server = Server::start(&["--sim-latency-ms", "1"]);
    let script = r#"
const ask = async (text) => {
  const response = await fetch(process.argv[1], {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ input: text }),
  });
  const answer = await response.json();
  if (response.status !== 200 || answer.output !== text.toUpperCase()) throw new Error(JSON.stringify(answer));
};
(async () => {
  for (let round = 0; round < 20; round++)
    await Promise.all(Array.from({ length: 10 }, (_, n) => ask(`from node ${round} ${n}`)));
  console.log("well served");
})();
"#;
    let said = tools::output("node", &["-e", script, &url(server.listen())]);
    assert_eq!(said.trim(), "well served");
    let opened = server
        .fresh_metrics()
        .value("funicular_connections_opened_total", &[]);
    assert!(
        opened <= 20.0,
        "{opened} connections for 200 requests, ten at a time"
    );
}

/// A thousand requests through a proxy, over a few connections on both of its sides.
fn expect_served_through(proxy: SocketAddr, server: &Server) {
    in_parallel(10, |_| {
        let mut client = Client::connect(proxy);
        for _ in 0..100 {
            let input = unique("through a proxy");
            client
                .infer_with("X-Tier: paid\r\n", &input)
                .expect_output(&input);
        }
        // Errors pass as they are.
        client
            .infer_with("X-Tier: gold\r\n", "x")
            .expect_problem(400);
        assert_eq!(client.get("/nope").status, 404);
    });
    // Each once, and none again.
    let served = [("tier", "paid"), ("code", "200")];
    let metrics = server.expect_count("funicular_requests_total", &served, 1_000.0);
    let opened = metrics.value("funicular_connections_opened_total", &[]);
    assert!(
        opened <= 100.0,
        "{opened} connections: the proxy could not keep them"
    );
}

fn written(name: &str, text: String) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join(name);
    let text = text.replace("DIRECTORY", &directory.path().display().to_string());
    std::fs::write(&path, text).expect("writable");
    (directory, path)
}

#[test]
fn nginx_in_front_keeps_its_connections() {
    if !tools::is_there("nginx") {
        return;
    }
    let _machine = light();
    let server = Server::start(&["--sim-latency-ms", "2"]);
    let reserved = Reserved::new();
    let proxy = reserved.address();
    // One process, so that killing it leaves none behind.
    let text = format!(
        "daemon off; master_process off; pid DIRECTORY/pid; error_log stderr;
         events {{ worker_connections 256; }}
         http {{
           access_log off;
           client_body_temp_path DIRECTORY/1; proxy_temp_path DIRECTORY/2; fastcgi_temp_path DIRECTORY/3;
           uwsgi_temp_path DIRECTORY/4; scgi_temp_path DIRECTORY/5;
           upstream funicular {{ server {}; keepalive 16; }}
           server {{
             listen {proxy};
             location / {{
               proxy_pass http://funicular; proxy_http_version 1.1; proxy_set_header Connection \"\";
               proxy_next_upstream off;
             }}
           }}
         }}",
        server.listen()
    );
    let (_directory, path) = written("nginx.conf", text);
    let path = path.to_str().expect("text");
    let _nginx = Listening::start("nginx", &["-c", path, "-e", "stderr"], proxy);
    expect_served_through(proxy, &server);
}

#[test]
fn haproxy_in_front_keeps_its_connections() {
    if !tools::is_there("haproxy") {
        return;
    }
    let _machine = light();
    let server = Server::start(&["--sim-latency-ms", "2"]);
    let reserved = Reserved::new();
    let proxy = reserved.address();
    let text = format!(
        "global\n  maxconn 256\n\
         defaults\n  mode http\n  timeout connect 60s\n  timeout client 60s\n  timeout server 60s\n  \
         timeout check 60s\n  \
         retries 0\n  http-reuse always\n\
         frontend front\n  bind {proxy}\n  default_backend funicular\n\
         backend funicular\n  option httpchk GET /v2/health/ready\n  server one {} check inter 200ms\n",
        server.listen()
    );
    let (_directory, path) = written("haproxy.cfg", text);
    let path = path.to_str().expect("text");
    let _haproxy = Listening::start("haproxy", &["-f", path, "-db"], proxy);
    expect_served_through(proxy, &server);
}

#[test]
fn wrk_and_hey_see_no_error() {
    let _machine = heavy();
    let server = Server::start(&[&PATIENT[..], &["--sim-latency-ms", "5"]].concat());
    let url = url(server.listen());
    if tools::is_there("wrk") {
        let script = "wrk.method = 'POST'\nwrk.body = '{\"input\": \"from wrk\"}'\n\
                      wrk.headers['Content-Type'] = 'application/json'\n";
        let (_directory, path) = written("post.lua", script.to_owned());
        let path = path.to_str().expect("text");
        let report = tools::output(
            "wrk",
            &["-t1", "-c100", "-d1s", "--timeout", "60s", "-s", path, &url],
        );
        assert!(
            !report.contains("Non-2xx") && !report.contains("Socket errors"),
            "{report}"
        );
        assert!(report.contains("Requests/sec"), "{report}");
    }
    if tools::is_there("hey") {
        let report = tools::output(
            "hey",
            &[
                "-n",
                "1000",
                "-c",
                "50",
                "-t",
                "0",
                "-m",
                "POST",
                "-T",
                "application/json",
                "-d",
                "{\"input\": \"from hey\"}",
                &url,
            ],
        );
        assert!(report.contains("[200]\t1000 responses"), "{report}");
        assert!(!report.contains("Error distribution"), "{report}");
    }
}

/// Raw-socket probes that are kept apart from this repository.
#[test]
fn the_probes_pass_whole() {
    let Some(probes) = std::env::var_os("FUNICULAR_PROBES") else {
        eprintln!("skipped: FUNICULAR_PROBES does not name the probes' run.py");
        return;
    };
    if !tools::is_there("python3") {
        return;
    }
    let _machine = light();
    let server = Server::start(&[]);
    let probes = probes.to_str().expect("text");
    let report = tools::output("python3", &[probes, &server.listen().to_string()]);
    assert!(report.contains(" 0 failed"), "{report}");
}
