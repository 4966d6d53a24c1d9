//! A proxy between a server and its worker that drops, delays, cuts and duplicates, by a seed.
//!
//! It understands just enough to know which batches have reached the worker whole: their ids.

use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// A running proxy; it ends with the test's process.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    worker: SocketAddr,
    random: AtomicU64,
    mean: AtomicBool,
    batches: Mutex<HashSet<String>>,
    mischief: AtomicU64,
    connections: Mutex<Vec<TcpStream>>,
}

/// What happens to a message.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Pass,
    /// It never arrives, and the connection is gone.
    Drop,
    /// It arrives late.
    Delay(Duration),
    /// Half of it arrives, and the connection is gone.
    Cut,
    /// It arrives twice.
    Twice,
}

impl Proxy {
    /// A proxy in front of `worker` that behaves until [`Proxy::be_mean`].
    pub fn start(worker: SocketAddr, seed: u64) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared {
            worker,
            random: AtomicU64::new(seed),
            mean: AtomicBool::new(false),
            batches: Mutex::default(),
            mischief: AtomicU64::new(0),
            connections: Mutex::default(),
        });
        let of_thread = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&of_thread);
                thread::spawn(move || shared.serve(stream));
            }
        });
        Proxy { address, shared }
    }

    /// Where servers connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on about every fourth message meets with mischief, or none any more.
    pub fn be_mean(&self, mean: bool) {
        self.shared.mean.store(mean, Ordering::Relaxed);
    }

    /// Cuts every connection that there is.
    pub fn cut_all(&self) {
        let mut connections = self.shared.connections();
        for connection in connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Different batches that have reached the worker.
    pub fn batches(&self) -> usize {
        self.shared.batches().len()
    }

    /// Messages that something was done to.
    pub fn mischief(&self) -> u64 {
        self.shared.mischief.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn batches(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connections(&self) -> std::sync::MutexGuard<'_, Vec<TcpStream>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// One connection: requests one way, responses the other, message by message.
    fn serve(&self, server: TcpStream) {
        let Ok(worker) = TcpStream::connect(self.worker) else {
            return;
        };
        let _ = (server.set_nodelay(true), worker.set_nodelay(true));
        self.connections()
            .extend([&server, &worker].map(|stream| stream.try_clone().expect("a descriptor")));
        thread::scope(|scope| {
            scope.spawn(|| {
                self.carry(&server, &worker, true);
                close(&server, &worker);
            });
            self.carry(&worker, &server, false);
            close(&server, &worker);
        });
    }

    fn carry(&self, mut from: &TcpStream, mut to: &TcpStream, requests: bool) {
        while let Some(message) = read_message(&mut from) {
            let fate = self.fate();
            let half = message.len() / 2;
            if !matches!(fate, Fate::Pass) {
                self.mischief.fetch_add(1, Ordering::Relaxed);
            }
            if let Fate::Delay(span) = fate {
                thread::park_timeout(span);
            }
            let (bytes, times) = match fate {
                Fate::Drop => return,
                Fate::Cut => (&message[..half], 1),
                Fate::Twice => (&message[..], 2),
                Fate::Pass | Fate::Delay(_) => (&message[..], 1),
            };
            // Before it is on its way, or the worker could be done with it first.
            if requests && !matches!(fate, Fate::Cut) {
                self.batches().extend(batch_id(&message));
            }
            for _ in 0..times {
                if to.write_all(bytes).is_err() {
                    return;
                }
            }
            if matches!(fate, Fate::Cut) {
                return;
            }
        }
    }

    fn fate(&self) -> Fate {
        if !self.mean.load(Ordering::Relaxed) {
            return Fate::Pass;
        }
        match self.random() % 16 {
            0 => Fate::Drop,
            1 => Fate::Cut,
            2 => Fate::Twice,
            3 => Fate::Delay(Duration::from_millis(self.random() % 60)),
            _ => Fate::Pass,
        }
    }

    /// SplitMix64 over a shared counter.
    fn random(&self) -> u64 {
        let mut z = self
            .random
            .fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

fn close(one: &TcpStream, other: &TcpStream) {
    let _ = (one.shutdown(Shutdown::Both), other.shutdown(Shutdown::Both));
}

/// The next whole message; `None` at the end.
fn read_message(from: &mut impl Read) -> Option<Vec<u8>> {
    let mut message = Vec::new();
    let mut byte = [0];
    while !message.ends_with(b"\r\n\r\n") {
        match from.read(&mut byte) {
            Ok(1) => message.push(byte[0]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            _ => return None,
        }
    }
    let head = String::from_utf8_lossy(&message).to_ascii_lowercase();
    let length = head
        .split("content-length: ")
        .nth(1)
        .and_then(|rest| rest.lines().next());
    let length = length.map_or(0, |length| length.parse().expect("a number"));
    let start = message.len();
    message.resize(start + length, 0);
    from.read_exact(&mut message[start..]).ok()?;
    Some(message)
}

fn batch_id(message: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(message);
    let rest = text.split("{\"batch_id\":\"").nth(1)?;
    rest.split('"').next().map(str::to_owned)
}
