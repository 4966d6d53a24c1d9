//! How many bytes have come and gone on a TCP connection, as the kernel counts them.

use std::os::fd::RawFd;

/// The bytes of one connection so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Received from the peer, read or not.
    pub received: u64,
    /// Handed to the kernel to be sent, whether the peer has them or not.
    pub written: u64,
}

// Where the counts stand in the kernel's `struct tcp_info`, which only grows at its end: `tcpi_bytes_received`,
// `tcpi_notsent_bytes`, and from Linux 4.19 `tcpi_bytes_sent` and `tcpi_bytes_retrans`.
const RECEIVED_AT: usize = 128;
const NOT_SENT_AT: usize = 144;
const SENT_AT: usize = 200;
const SENT_AGAIN_AT: usize = 208;
const LENGTH: usize = 216;

/// The bytes of the connection `descriptor`; `None` if the kernel does not count them all, or it is no connection.
pub fn traffic(descriptor: RawFd) -> Option<Traffic> {
    let mut info = [0_u8; LENGTH];
    let mut length = libc::socklen_t::try_from(LENGTH).ok()?;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which is that long, and says in `length` how many.
    let result = unsafe {
        libc::getsockopt(
            descriptor,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    (result == 0 && usize::try_from(length) == Ok(LENGTH)).then(|| read(&info))
}

fn read(info: &[u8; LENGTH]) -> Traffic {
    let long = |at: usize| u64::from_ne_bytes(array(info, at));
    let sent = long(SENT_AT).saturating_sub(long(SENT_AGAIN_AT));
    Traffic {
        received: long(RECEIVED_AT),
        written: sent + u64::from(u32::from_ne_bytes(array(info, NOT_SENT_AT))),
    }
}

fn array<const N: usize>(info: &[u8; LENGTH], at: usize) -> [u8; N] {
    std::array::from_fn(|index| info[at + index])
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn the_kernel_counts_both_ways_and_what_is_not_taken() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connect");
        let (mut far, _) = listener.accept().expect("a connection");
        let Some(fresh) = traffic(near.as_raw_fd()) else {
            println!("skipped: this kernel does not count");
            return;
        };
        assert_eq!(fresh, Traffic::default());
        near.write_all(&[0; 1_000]).expect("sent");
        far.read_exact(&mut [0; 10]).expect("received");
        far.write_all(&[0; 70]).expect("sent");
        near.read_exact(&mut [0; 70]).expect("received");
        let near_traffic = traffic(near.as_raw_fd()).expect("it counts");
        assert_eq!((near_traffic.written, near_traffic.received), (1_000, 70));
        assert_eq!(traffic(far.as_raw_fd()).expect("it counts").received, 1_000);
        // The peer takes nothing, until its buffer and ours are full.
        far.set_nonblocking(true).expect("an option");
        let mut written = 70;
        while let Ok(bytes) = far.write(&[0; 60_000]) {
            written += bytes as u64;
        }
        assert_eq!(
            traffic(far.as_raw_fd()).expect("it counts").written,
            written
        );
        assert_eq!(
            traffic(listener.as_raw_fd()).map(|traffic| traffic.received),
            Some(0)
        );
        assert_eq!(traffic(-1), None);
    }
}
