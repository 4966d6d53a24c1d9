//! Answers that are somebody else's, or come twice: the engine finds each of them.

use std::io::BufReader;
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};

use super::*;

#[test]
fn a_lying_server_is_found_out() {
    let so_far = Mutex::new((0, String::new()));
    let server = serve(move |asked| {
        let mut so_far = so_far.lock().expect("no panics under the lock");
        so_far.0 += 1;
        let last = std::mem::replace(&mut so_far.1, asked.right());
        // Every hundredth caller gets what the one before it should have got.
        let lie = so_far.0 % 100 == 0;
        answer(200, &if lie { last } else { asked.right() })
    });
    let recorder = drive(server, |_| {});
    assert_eq!(recorder.mismatches.wrong, 5);
    assert_eq!(count(&recorder, Outcome::Wrong), 5);
    assert_eq!(count(&recorder, Outcome::Status(200)), 495);
    assert_eq!(recorder.mismatches.examples.len(), 5);
    assert!(!recorder.mismatches.is_clean());
}

#[test]
fn a_double_answer_is_found_out_at_once_and_late() {
    for late in [false, true] {
        let asked_so_far = AtomicUsize::new(0);
        let server = serve(move |asked| {
            let Deed::Write(mut bytes) = answer(200, &asked.right()) else {
                unreachable!("an answer is bytes")
            };
            if asked_so_far.fetch_add(1, Ordering::Relaxed) == 40 {
                let again = bytes.clone();
                bytes.extend_from_slice(&again);
                if late {
                    // The second copy comes with the answer to the next request on this connection.
                    bytes.truncate(bytes.len() - 1);
                }
            }
            Deed::Write(bytes)
        });
        let recorder = drive(server, |options| options.connections = Some(2));
        assert_eq!(recorder.mismatches.double, 1, "late: {late}");
        assert_eq!(recorder.mismatches.wrong, 0);
    }
}

#[test]
fn an_answer_on_an_idle_connection_is_a_double_one_but_a_goodbye_is_not() {
    for (surplus, double) in [(200, 1), (408, 0)] {
        let listener = support::listener();
        let address = listener.local_addr().expect("bound");
        let (news, told) = mpsc::channel();
        std::thread::spawn(move || {
            for (id, stream) in listener.incoming().flatten().enumerate() {
                let news = news.clone();
                std::thread::spawn(move || listen_to(id, stream, &news));
            }
        });
        std::thread::spawn(move || answer_the_second_twice(&told, surplus));
        let recorder = drive(address, |options| {
            options.rate = Some(5.0);
            // One for each request, so that no connection is used again.
            options.connections = Some(5);
            options.threads = Some(1);
        });
        assert_eq!(recorder.mismatches.double, double, "status {surplus}");
        assert_eq!(count(&recorder, Outcome::Status(200)), 5);
    }
}

/// What a connection has to say; the engine's look whether anybody is there says nothing.
enum News {
    Asked(usize, TcpStream, Asked),
    Left(usize),
}

fn listen_to(id: usize, stream: TcpStream, news: &Sender<News>) {
    let mut reader = BufReader::new(&stream);
    while let Some(asked) = support::read_request(&mut reader, 0) {
        let stream = stream.try_clone().expect("a descriptor");
        let _ = news.send(News::Asked(id, stream, asked));
    }
    let _ = news.send(News::Left(id));
}

/// Answers the second request to come, and once its connection is idle, again with `status`. It is known to be idle when the
/// engine, which reads in the order in which answers come, has closed another connection because of a later answer.
/// Everybody else is answered after that, so that the run does not end before.
fn answer_the_second_twice(told: &Receiver<News>, status: u16) {
    let mut others: Vec<(TcpStream, Asked)> = Vec::new();
    let next = || loop {
        if let News::Asked(id, stream, asked) = told.recv().expect("five requests") {
            return (id, stream, asked);
        }
    };
    let (first_id, mut first, first_asked) = next();
    let (_, mut second, second_asked) = next();
    write(&mut second, answer(200, &second_asked.right()));
    write(&mut first, last_answer(&first_asked));
    while let Ok(news) = told.recv() {
        match news {
            News::Left(id) if id == first_id => break,
            News::Left(_) => {}
            News::Asked(_, stream, asked) => others.push((stream, asked)),
        }
    }
    write(&mut second, answer(status, "{}"));
    for (mut stream, asked) in others {
        write(&mut stream, answer(200, &asked.right()));
    }
    for news in told {
        if let News::Asked(_, mut stream, asked) = news {
            write(&mut stream, answer(200, &asked.right()));
        }
    }
}

fn write(stream: &mut TcpStream, deed: Deed) {
    if let Deed::Write(bytes) = deed {
        let _ = stream.write_all(&bytes);
    }
}
