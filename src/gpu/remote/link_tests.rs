//! The link against servers of a few lines, each of which does one thing wrong.

use std::net::TcpListener;
use std::thread::{self, JoinHandle};

use super::super::tests::nobody;
use super::*;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A server that does `script` to one connection after the other.
fn server(script: Vec<fn(TcpStream)>) -> (Link, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let thread = thread::spawn(move || {
        for step in script {
            step(listener.accept().expect("a connection").0);
        }
    });
    let mut link = Link::default();
    link.point_at(vec![address]);
    (link, thread)
}

fn hear(stream: &mut TcpStream) {
    let mut request = [0; 4];
    stream.read_exact(&mut request).expect("the request");
    assert_eq!(&request, b"ping");
}

fn say(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).expect("the link reads");
}

/// Until the other side closes.
fn hear_out(stream: &mut TcpStream) {
    while matches!(stream.read(&mut [0; 64]), Ok(bytes) if bytes > 0) {}
}

fn soon() -> Time {
    clock::now() + Duration::from_secs(20)
}

fn ask(link: &mut Link) -> Step {
    link.drive(&mut Exchange::new(b"ping".to_vec(), 100), soon())
}

fn body(step: Step) -> String {
    match step {
        Step::Answered(response) => String::from_utf8(response.body).expect("text"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_connection_is_kept_from_one_exchange_to_the_next() {
    let (mut link, thread) = server(vec![|mut stream| {
        for _ in 0..3 {
            hear(&mut stream);
            say(&mut stream, OK);
        }
    }]);
    for _ in 0..3 {
        assert_eq!(body(ask(&mut link)), "ok");
    }
    thread.join().expect("three requests on one connection");
}

#[test]
fn a_repeated_response_is_not_taken_for_the_next_one() {
    let twice = |mut stream: TcpStream| {
        hear(&mut stream);
        say(&mut stream, &format!("{OK}{OK}"));
        hear_out(&mut stream);
    };
    let once = |mut stream: TcpStream| {
        hear(&mut stream);
        say(
            &mut stream,
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnew",
        );
    };
    let (mut link, thread) = server(vec![twice, once]);
    assert_eq!(body(ask(&mut link)), "ok");
    link.tidy();
    assert_eq!(body(ask(&mut link)), "new");
    thread.join().expect("two connections");
}

#[test]
fn a_connection_that_breaks_is_told_from_nonsense() {
    let (mut link, _thread) = server(vec![
        drop,
        |mut stream| {
            hear(&mut stream);
            say(&mut stream, &OK[..20]);
        },
        |mut stream| {
            hear(&mut stream);
            say(&mut stream, "220 smtp ready\r\n");
            hear_out(&mut stream);
        },
    ]);
    assert!(matches!(ask(&mut link), Step::Broken(_)));
    assert!(matches!(ask(&mut link), Step::Broken(why) if why.contains("in the middle")));
    assert!(matches!(ask(&mut link), Step::Nonsense(_)));
}

#[test]
fn nobody_there_is_a_broken_connection_at_once() {
    let (_held, nobody) = nobody();
    let mut link = Link::default();
    link.point_at(vec![nobody]);
    assert!(matches!(ask(&mut link), Step::Broken(_)));
    link.point_at(Vec::new());
    assert!(matches!(ask(&mut link), Step::Broken(_)));
}

#[test]
fn a_silent_server_is_waited_for_until_the_time_given_and_heard_after() {
    let (mut link, thread) = server(vec![|mut stream| {
        hear(&mut stream);
        // What is asked next on another connection never comes: this is the signal to answer.
        thread::park();
        say(&mut stream, OK);
        hear_out(&mut stream);
    }]);
    let mut exchange = Exchange::new(b"ping".to_vec(), 100);
    link.send(&mut exchange, soon()).expect("it listens");
    let until = clock::now() + Duration::from_millis(20);
    assert_eq!(link.drive(&mut exchange, until), Step::Pending);
    assert!(clock::now() >= until);
    thread.thread().unpark();
    assert_eq!(body(link.drive(&mut exchange, soon())), "ok");
    link.close();
    thread.join().expect("one connection");
}

#[test]
fn a_refusal_counts_although_the_request_was_not_read() {
    let (mut link, _thread) = server(vec![|mut stream| {
        hear(&mut stream);
        say(
            &mut stream,
            "HTTP/1.1 413 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        );
        stream
            .shutdown(std::net::Shutdown::Write)
            .expect("a socket");
        hear_out(&mut stream);
    }]);
    let mut long = b"ping".to_vec();
    long.resize(32 << 20, b' ');
    match link.drive(&mut Exchange::new(long, 100), soon()) {
        Step::Answered(response) => assert_eq!(response.status, 413),
        other => panic!("{other:?}"),
    }
}
