//! The GPU thread's end of the socket to its worker. Never blocks: what the kernel does not take now is sent later, and
//! the caller polls.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair, sockopt,
};

use super::frame::{self, Frame, Malformed};

/// Asked of the kernel, which may give less: room for a batch of inputs of usual size, so that staging one does not wait
/// for the worker to read.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// Read at one go.
const READ_BYTES: usize = 64 << 10;

/// Buffers larger than this are given back after use.
pub(super) const KEPT_BYTES: usize = 4 << 20;

/// The worker has closed its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Closed;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Link {
    socket: OwnedFd,
    outbox: Vec<u8>,
    /// How much of the outbox is sent.
    sent: usize,
    inbox: Vec<u8>,
}

impl Link {
    /// A link, and the worker's end of it.
    ///
    /// # Errors
    /// No descriptors are left.
    pub(super) fn pair() -> io::Result<(Link, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (socket, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        for end in [&socket, &other] {
            // Whatever the kernel gives will do.
            let _ = sockopt::set_socket_send_buffer_size(end, SEND_BUFFER_BYTES);
        }
        let (outbox, inbox) = (Vec::new(), Vec::new());
        Ok((
            Link {
                socket,
                outbox,
                sent: 0,
                inbox,
            },
            other,
        ))
    }

    /// Frames put here are sent by [`Link::flush`].
    pub(super) fn outbox(&mut self) -> &mut Vec<u8> {
        &mut self.outbox
    }

    /// Whether something waits to be sent.
    pub(super) fn is_sending(&self) -> bool {
        self.sent < self.outbox.len()
    }

    /// Sends what the kernel takes now. That the worker is gone shows when it is read from.
    pub(super) fn flush(&mut self) {
        while self.is_sending() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(&self.socket, &self.outbox[self.sent..], flags) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // Nobody will ever read it.
                Err(_) => self.sent = self.outbox.len(),
            }
        }
        self.outbox.clear();
        self.outbox.shrink_to(KEPT_BYTES);
        self.sent = 0;
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// [`Closed`] when everything has been read and there will be no more.
    pub(super) fn receive(&mut self) -> Result<(), Closed> {
        loop {
            self.inbox.reserve(READ_BYTES);
            let room = self.inbox.capacity() - self.inbox.len();
            let into = spare_capacity(&mut self.inbox);
            match recv(&self.socket, into, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Closed),
                Ok((count, _)) if count < room => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(_) => return Err(Closed),
            }
        }
    }

    /// The next frame, if it has come in full.
    ///
    /// # Errors
    /// [`Malformed`].
    pub(super) fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        let Some((frame, length)) = frame::parse(&self.inbox)? else {
            return Ok(None);
        };
        self.inbox.drain(..length);
        if self.inbox.is_empty() {
            self.inbox.shrink_to(KEPT_BYTES);
        }
        Ok(Some(frame))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::Extras;
    use super::*;
    use crate::gpu::executor::Half;
    use crate::ticket::Input;

    fn read_all(socket: &OwnedFd) -> Vec<u8> {
        let mut all = Vec::new();
        let mut bytes = vec![0; 1 << 20];
        while let Ok((count, _)) = recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            if count == 0 {
                break;
            }
            all.extend_from_slice(&bytes[..count]);
        }
        all
    }

    #[test]
    fn a_batch_larger_than_the_kernel_takes_goes_in_parts_and_never_blocks() {
        let (mut link, other) = Link::pair().expect("a pair");
        let inputs = vec![Input::new("x".repeat(64 << 10)); 100];
        frame::batch(link.outbox(), Half::A, 0, &inputs, Extras::default());
        let wanted = link.outbox().clone();
        let mut got = Vec::new();
        link.flush();
        assert!(link.is_sending(), "6.4 MB are more than a socket holds");
        while got.len() < wanted.len() {
            got.extend(read_all(&other));
            link.flush();
        }
        assert!(!link.is_sending());
        assert!(got == wanted);
    }

    #[test]
    fn the_last_frame_is_read_although_the_worker_is_gone() {
        let (mut link, other) = Link::pair().expect("a pair");
        let bytes = [2, 0, 0, 0, b'P', b'a', 0, 0];
        send(&other, &bytes, SendFlags::empty()).expect("room");
        drop(other);
        assert_eq!(link.receive(), Ok(()));
        assert_eq!(link.next(), Ok(Some(Frame::Progress("a".to_owned()))));
        assert_eq!(link.next(), Ok(None));
        assert_eq!(link.receive(), Err(Closed));
        frame::go(link.outbox(), Half::A, 0);
        link.flush();
        assert!(!link.is_sending(), "nobody will read it");
    }
}
