//! A server under `ulimit -v`: connections for whose stacks there is no address space are dropped, and nothing else is.

use std::net::{SocketAddr, TcpStream};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::support::{Client, Server, heavy, post, raise_open_files, unique, wait_for};

/// Far more than there are pooled stacks, and than there is room for beside them.
const MANY: usize = 2_000;

/// Room beside the pooled stacks, in bytes.
const ROOM: u64 = 16 << 20;

/// Lets the server have `more` bytes of address space than it has, or as many as this process may have. Whether limits
/// can be set here; if not, says that the test is skipped.
fn limit(server: &Server, more: Option<u64>) -> bool {
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", server.pid()));
    let statm = statm.expect("it lives");
    let (pages, _) = statm.split_once(' ').expect("several numbers");
    let present = pages.parse::<u64>().expect("a number") * rustix::param::page_size() as u64;
    let own = getrlimit(Resource::As);
    let wanted = Rlimit {
        current: more.map_or(own.current, |more| Some(present + more)),
        maximum: own.maximum,
    };
    let pid = Pid::from_raw(i32::try_from(server.pid()).expect("a pid"));
    let set = prlimit(pid, Resource::As, wanted);
    if let Err(error) = &set {
        eprintln!("skipped: the limit of address space can't be set: {error}");
    }
    set.is_ok()
}

/// Whether a new connection gets an answer to `request`.
fn answers(address: SocketAddr, request: &[u8]) -> bool {
    let Ok(mut client) = Client::try_connect(address) else {
        return false;
    };
    client.try_send(request).is_ok()
        && matches!(client.try_response(), Ok(Some(answer)) if answer.status == 200)
}

#[test]
fn connections_without_room_for_a_stack_are_dropped_and_nothing_else_is() {
    let _machine = heavy();
    if raise_open_files() < MANY + 200 {
        eprintln!("skipped: not enough descriptors for {MANY} connections");
        return;
    }
    let mut server = Server::start(&["--gpus", "1", "--sim-latency-ms", "1"]);
    let admin = server.admin().expect("on");
    let mut old = server.connect();
    let input = unique("before");
    old.infer(&input).expect_output(&input);
    if !limit(&server, Some(ROOM)) {
        return;
    }
    let idle: Vec<_> = (0..MANY)
        .filter_map(|_| TcpStream::connect(server.listen()).ok())
        .collect();
    server.wait_log("connections are dropped for now: no memory for another coroutine's stack");
    // The admin port has no room either; what becomes of these is the library's affair.
    let scrapers: Vec<_> = (0..3).map(|_| TcpStream::connect(admin)).collect();
    let input = unique("meanwhile");
    old.infer(&input).expect_output(&input);
    drop((idle, scrapers));

    // The limit stays: what was closed is room enough.
    let request = post("", &unique("afterwards"));
    wait_for("the data port to answer again", || {
        answers(server.listen(), &request)
    });
    wait_for("the admin port to answer again", || {
        answers(admin, b"GET /healthz HTTP/1.1\r\n\r\n")
    });
    assert_eq!(server.get("/v2/health/ready").status, 200);
    drop(old);
    server.terminate();
    assert!(server.wait_exit().success());
    let log = server.log();
    let said = log.matches("connections are dropped for now").count();
    assert!(said <= 10, "said {said} times");
    assert!(!log.contains("is lost"), "a listener ended");
    assert!(!log.contains("the grace period ended"), "it waited");
}

#[test]
fn a_server_started_with_little_address_space_takes_fewer_connections_and_says_so() {
    if raise_open_files() < 8_192 {
        eprintln!("skipped: here descriptors are what is scarce");
        return;
    }
    let mut command = std::process::Command::new("sh");
    let script =
        "ulimit -v 1000000 || { echo skipped; exit 0; }; exec \"$0\" check --gpus 4 --cores 1";
    command.args(["-c", script, env!("CARGO_BIN_EXE_funicular")]);
    let output = command.output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    if output.stdout.starts_with(b"skipped") {
        eprintln!("skipped: the limit of address space can't be set: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains(
            "instead of 20,000 (ulimit -v is 976.6 MiB, of which 910 MiB are for other uses)"
        ),
        "{said}"
    );
}
