//! What the admin port's callers may cost, whoever they are: memory, cores, descriptors.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use funicular::clock;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::support::{BOUND, Client, Server, heavy, light, unique, wait_for};

fn connect(server: &Server) -> TcpStream {
    let admin = server.admin().expect("on");
    let stream = TcpStream::connect(admin).expect("a connection");
    stream.set_read_timeout(Some(BOUND)).expect("an option");
    stream.set_write_timeout(Some(BOUND)).expect("an option");
    stream
}

/// Writes `bytes` again and again until the server has had enough, and gives how many it took.
fn flood(stream: &TcpStream, bytes: &[u8]) -> (usize, io::Error) {
    let (mut stream, mut sent) = (stream, 0);
    loop {
        match stream.write(bytes) {
            Ok(written) => sent += written,
            Err(error) => return (sent, error),
        }
        assert!(sent < 2 << 30, "the server takes everything");
    }
}

/// The most memory that the server has had, in MiB.
fn peak_mib(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.expect("a size")
        .trim()
        .parse::<u64>()
        .expect("a number")
        / 1_024
}

/// CPU time of the server so far.
fn cpu(server: &Server) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.pid())).expect("it lives");
    let (_, fields) = stat.rsplit_once(") ").expect("a name");
    let ticks: u64 = fields
        .split(' ')
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().expect("a number"))
        .sum();
    // 100 a second on every Linux.
    Duration::from_millis(10 * ticks)
}

/// Both planes answer, soon.
fn assert_well(server: &Server) {
    let input = unique("well");
    server.infer(&input).expect_output(&input);
    assert_eq!(server.admin_get("/healthz").status, 200);
}

#[test]
fn an_endless_request_line_is_cut_off() {
    let _machine = heavy();
    let mut server = Server::start(&["--sim-latency-ms", "1"]);
    let before = peak_mib(&server);
    for start in ["GET /", "GET / HTTP/1.1\r\nX: ", ""] {
        let mut stream = connect(&server);
        stream.write_all(start.as_bytes()).expect("it reads");
        let (sent, error) = flood(&stream, &[b'x'; 64 << 10]);
        assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
        println!("cut after {sent} bytes");
        assert_well(&server);
    }
    let grown = peak_mib(&server) - before;
    assert!(grown < 64, "{grown} MiB more");
    assert_eq!(server.end().matches("was cut").count(), 1, "said once");
}

#[test]
fn pipelined_requests_without_end_are_cut_off() {
    let _machine = heavy();
    let server = Server::start(&["--sim-latency-ms", "1"]);
    let before = peak_mib(&server);
    for target in ["/metrics", "/healthz", "/nowhere"] {
        let many = format!("GET {target} HTTP/1.1\r\n\r\n").repeat(1_000);
        // Nobody takes the answers.
        let (_, error) = flood(&connect(&server), many.as_bytes());
        assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
        assert_well(&server);
        // Somebody does.
        let stream = connect(&server);
        let mut reading = stream.try_clone().expect("a descriptor");
        let reader = thread::spawn(move || {
            let mut answers = [0; 64 << 10];
            while reading.read(&mut answers).is_ok_and(|bytes| bytes > 0) {}
        });
        let (_, error) = flood(&stream, many.as_bytes());
        assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
        let _ = stream.shutdown(Shutdown::Both);
        reader.join().expect("it ends");
        assert_well(&server);
    }
    let grown = peak_mib(&server) - before;
    assert!(grown < 64, "{grown} MiB more");
}

#[test]
fn idle_connections_keep_nobody_out_and_are_few() {
    let _machine = light();
    let server = Server::start(&["--sim-latency-ms", "1"]);
    let descriptors = || {
        let folder = fs::read_dir(format!("/proc/{}/fd", server.pid()));
        folder.expect("it lives").count()
    };
    let before = descriptors();
    let mut idle: Vec<_> = (0..200).map(|_| connect(&server)).collect();
    for _ in 0..5 {
        assert_well(&server);
    }
    // Those who have gone, of either plane, may be a moment in closing; idle ones stay.
    wait_for("few descriptors for 200 idle connections", || {
        descriptors() <= before + 20
    });
    // The first of them had been quiet for longest.
    let first = idle[0].read(&mut [0]);
    assert!(matches!(first, Ok(0) | Err(_)), "{first:?}");
    // One that asks now and then is not among those who go.
    let mut asking = Client::connect(server.admin().expect("on"));
    for _ in 0..20 {
        assert_eq!(asking.get("/healthz").status, 200);
        drop(connect(&server));
    }
}

#[test]
fn nonsense_does_not_fill_the_log() {
    let _machine = light();
    let server = Server::start(&["--sim-latency-ms", "1"]);
    let since = clock::now();
    for _ in 0..30 {
        let mut stream = connect(&server);
        stream.write_all(b"\x16\x03\x01\r\n\r\n").expect("sent");
        // Closed, one way or the other.
        assert!(!matches!(stream.read(&mut [0; 10]), Ok(1..)));
    }
    let passed = clock::now().since(since);
    assert!(passed > Duration::from_millis(2_500), "{passed:?}");
    assert_well(&server);
}

#[test]
fn a_scraper_may_pipeline_a_little_and_ask_often() {
    let _machine = light();
    let server = Server::start(&["--sim-latency-ms", "1"]);
    let mut client = Client::connect(server.admin().expect("on"));
    client.send("GET /metrics HTTP/1.1\r\n\r\n".repeat(5));
    for _ in 0..5 {
        assert_eq!(client.response().status, 200);
    }
    for _ in 0..300 {
        assert_eq!(client.get("/status").status, 200);
    }
}

#[test]
fn without_descriptors_nothing_spins_and_all_is_well_when_there_are_some() {
    let _machine = heavy();
    let server = Server::start(&["--sim-latency-ms", "1"]);
    assert_well(&server);
    let pid = Pid::from_raw(i32::try_from(server.pid()).expect("a pid"));
    let limit = |current| {
        let limit = Rlimit {
            current: Some(current),
            // The child has inherited it.
            maximum: getrlimit(Resource::Nofile).maximum,
        };
        prlimit(pid, Resource::Nofile, limit).expect("a child's limit can be set")
    };
    // As many as are open.
    let open = fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("it lives");
    let numbers = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok());
    let before = limit(numbers.max().expect("some are open") + 1);
    let waiting: Vec<_> = (0..3).map(|_| connect(&server)).collect();
    let caller = TcpStream::connect(server.listen()).expect("the kernel accepts");
    let (since, used) = (clock::now(), cpu(&server));
    let watched = Duration::from_secs(2);
    wait_for("two seconds to pass", || {
        clock::now().since(since) >= watched
    });
    let (passed, used) = (clock::now().since(since), cpu(&server) - used);
    assert!(used < passed / 3, "{used:?} of CPU time in {passed:?}");
    prlimit(pid, Resource::Nofile, before).expect("it had that before");
    drop((waiting, caller));
    wait_for("both planes to answer", || {
        server
            .admin()
            .and_then(|admin| Client::try_connect(admin).ok())
            .is_some_and(|mut client| {
                client.try_send("GET /healthz HTTP/1.1\r\n\r\n").is_ok()
                    && matches!(client.try_response(), Ok(Some(response)) if response.status == 200)
            })
    });
    assert_well(&server);
}
