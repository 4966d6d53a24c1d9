//! Servers that behave as a test wants: a thread per connection, plain blocking sockets, nothing shared with what is tested.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Once};
use std::time::Duration;

/// A request as the fake server sees it.
pub struct Asked {
    /// Request line and header lines, lower-cased.
    pub head: String,
    /// The body, whole.
    pub body: String,
    /// How many requests came on this connection before.
    pub earlier: usize,
}

impl Asked {
    /// The `input` of a JSON body.
    pub fn input(&self) -> String {
        let body: serde_json::Value = serde_json::from_str(&self.body).expect("a JSON body");
        body["input"].as_str().expect("an input").to_owned()
    }

    /// The right answer.
    pub fn right(&self) -> String {
        json(&self.input().to_uppercase())
    }
}

/// An answer's body with this output.
pub fn json(output: &str) -> String {
    serde_json::json!({ "request_id": "r", "output": output, "metadata": { "tokens_used": 3 } })
        .to_string()
}

/// What the fake server does with a request.
pub enum Deed {
    /// Bytes to write, whatever they are.
    Write(Vec<u8>),
    /// Say nothing and keep the connection.
    Silence,
    /// Close the connection.
    Close,
}

/// A whole answer with a length.
pub fn answer(status: u16, body: &str) -> Deed {
    Deed::Write(
        format!(
            "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes(),
    )
}

/// Waits without looking at a clock of ours: the thread has nobody to wake it.
pub fn wait(time: Duration) {
    if !time.is_zero() {
        let (_sender, never) = std::sync::mpsc::channel::<()>();
        let _ = never.recv_timeout(time);
    }
}

/// A socket on a port of its own on which nobody listens: whoever connects is refused, and nobody else gets the port.
pub fn refusing() -> (OwnedFd, SocketAddr) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let address = getsockname(&socket).expect("bound");
    (socket, address.try_into().expect("an IP address"))
}

/// From now on somebody listens on the socket of [`refusing`].
pub fn listen(socket: OwnedFd) -> TcpListener {
    rustix::net::listen(&socket, 128).expect("the port is its own");
    TcpListener::from(socket)
}

/// A listener on a free port. Where many tests run side by side, their connections are more than the thousand descriptors that
/// a process usually has, so before the first of them it takes all that it may have.
pub fn listener() -> TcpListener {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    static RAISED: Once = Once::new();
    RAISED.call_once(|| {
        let limit = getrlimit(Resource::Nofile);
        let current = limit.maximum;
        // Where that is refused, it may be enough all the same.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, ..limit });
    });
    TcpListener::bind("127.0.0.1:0").expect("a free port")
}

/// Starts a server on a free port; it lives as long as the process.
pub fn serve(behave: impl Fn(&Asked) -> Deed + Send + Sync + 'static) -> SocketAddr {
    serve_on(listener(), behave)
}

/// The same on a listener that is there already.
pub fn serve_on(
    listener: TcpListener,
    behave: impl Fn(&Asked) -> Deed + Send + Sync + 'static,
) -> SocketAddr {
    let address = listener.local_addr().expect("bound");
    let behave = Arc::new(behave);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let behave = Arc::clone(&behave);
            std::thread::spawn(move || talk(stream, &*behave));
        }
    });
    address
}

fn talk(stream: TcpStream, behave: &dyn Fn(&Asked) -> Deed) {
    let _ = stream.set_nodelay(true);
    let mut reader = BufReader::new(&stream);
    let mut earlier = 0;
    while let Some(asked) = read_request(&mut reader, earlier) {
        earlier += 1;
        match behave(&asked) {
            Deed::Write(bytes) => {
                if (&stream).write_all(&bytes).is_err() {
                    return;
                }
            }
            Deed::Silence => {}
            Deed::Close => {
                let _ = stream.shutdown(std::net::Shutdown::Both);
                return;
            }
        }
    }
}

/// The next request on a connection; `None` at its end.
pub fn read_request(reader: &mut BufReader<&TcpStream>, earlier: usize) -> Option<Asked> {
    let mut head = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        head.push_str(&line.to_lowercase());
    }
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    let length = length
        .and_then(|value| value.trim().parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Asked {
        head,
        body: String::from_utf8(body).ok()?,
        earlier,
    })
}
