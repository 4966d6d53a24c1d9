//! SIGHUP where there are no workers: the server stays, and reads what it can use. (With workers: `remote::reload`.)

use rustix::process::Signal;
use sha2::{Digest, Sha256};

use crate::support::{Server, light, wait_for};

fn reload(server: &Server) {
    let count = || server.metric("funicular_reloads_total", &[]);
    let before = server.fresh_metrics().value("funicular_reloads_total", &[]);
    server.signal(Signal::HUP);
    wait_for("the configuration to be read again", || count() > before);
}

fn key(name: &str) -> String {
    let digest: String = Sha256::digest(name)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("[[key]]\nname = \"{name}\"\nsha256 = \"{digest}\"\ntier = \"paid\"\n")
}

#[test]
fn a_hang_up_ends_neither_server_nor_worker() {
    let _machine = light();
    let server = Server::start(&["--sim-latency-ms", "5"]);
    let worker = Server::start_worker(&["--sim-latency-ms", "5"]);
    for server in [&server, &worker] {
        reload(server);
        server.wait_log("configuration read again: nothing has changed");
        assert_eq!(server.get("/v2/health/ready").status, 200);
    }
    server.infer("a").expect_output("a");
}

/// A wait that a signal interrupts is no error, and not to be called one in the log.
#[test]
fn signals_leave_no_errors_in_the_log() {
    let _machine = light();
    let mut server = Server::start(&["--sim-latency-ms", "5"]);
    for _ in 0..10 {
        server.signal(Signal::STOP);
        server.signal(Signal::CONT);
        reload(&server);
    }
    server.infer("a").expect_output("a");
    let log = server.end();
    assert!(!log.contains("ERROR"), "{log}");
}

#[test]
fn keys_are_rotated_without_a_restart() {
    let _machine = light();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("keys.toml");
    let write = |text: &str| std::fs::write(&path, text).expect("written");
    write(&key("old"));
    let file = path.to_str().expect("text");
    let server = Server::start(&[
        "--sim-latency-ms",
        "1",
        "--identity",
        "keys",
        "--keys",
        file,
    ]);
    let status = |name: &str| {
        let bearer = format!("Authorization: Bearer {name}\r\n");
        server.connect().infer_with(&bearer, "a").status
    };
    assert_eq!((status("old"), status("new")), (200, 401));
    write(&(key("old") + &key("new")));
    reload(&server);
    assert_eq!((status("old"), status("new")), (200, 200));
    write("[[key]]\nname = 5\n");
    reload(&server);
    server.wait_log("reload refused, everything stays as it was: ");
    assert_eq!((status("old"), status("new")), (200, 200));
    write(&key("new"));
    reload(&server);
    assert_eq!((status("old"), status("new")), (401, 200));
    server.wait_log("configuration read again: 1 key");
}
