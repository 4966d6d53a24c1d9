//! One scrape of an admin port: a plain GET on a connection of its own, and why it failed in words.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::http;
use crate::target::Target;

/// A scrape that is one of many may take this long; the generator's threads go on meanwhile.
const PATIENCE: Duration = Duration::from_millis(500);
/// A scrape that matters may take this long: without it there is no run, or nothing can be said about the server.
const PATIENCE_AT_ENDS: Duration = Duration::from_secs(5);
/// How often a scrape that matters is tried.
const TRIES: u32 = 3;
/// Pause between two tries.
const BETWEEN_TRIES: Duration = Duration::from_millis(100);
const METRICS: &str = "/metrics";

/// What is asked for.
pub(super) fn url_of(admin: &Target) -> String {
    format!("http://{}{METRICS}", admin.authority)
}

/// Why a scrape failed, as people say it: a time-out has a different name in every system call.
pub(super) fn reason_of(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => "timed out".to_owned(),
        ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
        _ => error.to_string(),
    }
}

/// A scrape that may fail twice.
pub(super) fn try_to_get(admin: &Target) -> std::io::Result<String> {
    for _ in 1..TRIES {
        if let Ok(text) = get_within(PATIENCE_AT_ENDS, admin) {
            return Ok(text);
        }
        std::thread::park_timeout(BETWEEN_TRIES);
    }
    get_within(PATIENCE_AT_ENDS, admin)
}

/// A scrape.
pub(super) fn get(admin: &Target) -> std::io::Result<String> {
    get_within(PATIENCE, admin)
}

fn get_within(patience: Duration, admin: &Target) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&admin.address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let request = format!(
        "GET {METRICS} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
        admin.authority
    );
    stream.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 64 * 1024];
    loop {
        let count = stream.read(&mut buffer)?;
        bytes.extend_from_slice(&buffer[..count]);
        let answer = http::read(&bytes, count == 0).map_err(std::io::Error::other)?;
        match answer {
            Some(answer) if answer.status == 200 => {
                return Ok(String::from_utf8_lossy(&answer.body).into_owned());
            }
            Some(answer) => return Err(std::io::Error::other(format!("status {}", answer.status))),
            None if count == 0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            None => {}
        }
    }
}
