//! Whether a caller is still at the other end of its connection.
//!
//! A handler that waits on its slot does not read its socket, so a hang-up is found by whoever is about to spend a batch
//! slot on the ticket: one non-blocking peek.

use std::os::fd::{BorrowedFd, RawFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// A caller's connection, by descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(RawFd);

impl Peer {
    /// The peer behind the connection with descriptor `fd`.
    pub const fn new(fd: RawFd) -> Peer {
        Peer(fd)
    }

    /// A peer that can't be looked at and so never counts as gone (tests, simulation).
    pub const fn unknown() -> Peer {
        Peer(-1)
    }

    /// Whether the peer has closed or reset the connection.
    ///
    /// Any thread may ask, at any time: the descriptor may have been closed and handed out again since, and then the
    /// answer is about somebody else. So peek first and then try to move the ticket's slot to `Gone`: a slot is only
    /// live while its handler waits and keeps the descriptor open, so if the move succeeds the answer was about this
    /// caller, and if it fails the answer is discarded.
    pub fn is_gone(self) -> bool {
        if self.0 < 0 {
            return false;
        }
        // SAFETY: the descriptor is used for one system call within this function. If it was closed meanwhile the call
        // fails (EBADF) or peeks at another socket, which takes nothing from it.
        let socket = unsafe { BorrowedFd::borrow_raw(self.0) };
        let mut byte = [0u8; 1];
        match recv(socket, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((0, _)) => true,
            Ok(_) => false,
            Err(error) => matches!(
                error,
                Errno::CONNRESET | Errno::PIPE | Errno::TIMEDOUT | Errno::NOTCONN
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let client = TcpStream::connect(listener.local_addr().expect("addr")).expect("connect");
        (client, listener.accept().expect("accept").0)
    }

    #[test]
    fn a_peer_is_gone_when_it_closed_and_not_while_it_waits_or_pipelines() {
        let (mut client, server) = pair();
        let peer = Peer::new(server.as_raw_fd());
        assert!(!peer.is_gone());
        client.write_all(b"next").expect("write");
        server.peek(&mut [0; 1]).expect("the byte arrives");
        assert!(!peer.is_gone(), "bytes of the next request wait");
        let mut four = [0; 4];
        std::io::Read::read_exact(&mut &server, &mut four).expect("read");
        drop(client);
        assert_eq!(server.peek(&mut [0; 1]).expect("FIN arrives"), 0);
        assert!(peer.is_gone());
        assert!(!Peer::unknown().is_gone());
    }
}
