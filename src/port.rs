//! Claims a TCP port before anybody listens on it.
//!
//! Every acceptor core has a listener of its own on the same port, and the admin plane's library binds its port itself;
//! both need `SO_REUSEPORT`. That option has two drawbacks: port 0 gives each listener another port, and a second
//! server started by mistake joins the first silently and takes half of its connections. A [`Reservation`] removes
//! both. It is a socket that is bound and never listens, so it gets no connections; listeners with `SO_REUSEPORT` may
//! bind [`Reservation::addr`] as long as it lives, and nobody else may.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, Socket, Type};

/// A port that belongs to this process until this is dropped and the last listener on it is closed.
#[derive(Debug)]
pub struct Reservation {
    addr: SocketAddr,
    _socket: Socket,
}

impl Reservation {
    /// Claims `addr`; port 0 stands for any free port.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] if a process listens there or has claimed it (this one included), or what the
    /// system says: no such address here, no permission for a port under 1024.
    pub fn new(addr: SocketAddr) -> io::Result<Reservation> {
        if addr.port() != 0 {
            probe(addr).map_err(|error| explain(addr, error))?;
        }
        let socket = claim(addr).map_err(|error| explain(addr, error))?;
        let addr = socket
            .local_addr()?
            .as_socket()
            .ok_or_else(|| io::Error::other("the socket has no IP address"))?;
        Ok(Reservation {
            addr,
            _socket: socket,
        })
    }

    /// The address to bind, with the port that was given for port 0.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

/// Binds as a server that shares with nobody, which fails if a process listens on `addr` or has claimed it. Connections
/// that linger in TIME_WAIT from an earlier server don't count: hence `SO_REUSEADDR`.
fn probe(addr: SocketAddr) -> io::Result<()> {
    let socket = tcp_socket(addr)?;
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())
}

/// Binds with `SO_REUSEPORT`. Without `SO_REUSEADDR` if possible: with it, another process's [`probe`] would pass until
/// somebody listens. What stands in its way then is a TIME_WAIT left by a server without `SO_REUSEPORT`.
fn claim(addr: SocketAddr) -> io::Result<Socket> {
    let socket = tcp_socket(addr)?;
    socket.set_reuse_port(true)?;
    if let Err(error) = socket.bind(&addr.into()) {
        if error.kind() != io::ErrorKind::AddrInUse {
            return Err(error);
        }
        socket.set_reuse_address(true)?;
        socket.bind(&addr.into())?;
    }
    Ok(socket)
}

fn tcp_socket(addr: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))
}

/// `error` with the address and what is the matter with it, of the same kind.
pub fn explain(addr: SocketAddr, error: io::Error) -> io::Error {
    let text = match error.kind() {
        io::ErrorKind::AddrInUse => format!("{addr} is in use by another process"),
        io::ErrorKind::AddrNotAvailable => format!("{addr} is not an address of this machine"),
        io::ErrorKind::PermissionDenied => format!("no permission to listen on {addr}"),
        _ => format!("can't listen on {addr}: {error}"),
    };
    io::Error::new(error.kind(), text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};

    const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    /// Any port of a loopback address that no other test uses: a port that is given up here is taken by nobody else.
    fn undisturbed(last: u8) -> SocketAddr {
        SocketAddr::from(([127, 0, 98, last], 0))
    }

    /// A listener as the server's own ones are made.
    fn sharing_listener(addr: SocketAddr) -> io::Result<TcpListener> {
        let socket = tcp_socket(addr)?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        socket.bind(&addr.into())?;
        socket.listen(128)?;
        Ok(socket.into())
    }

    fn assert_refused(addr: SocketAddr) {
        let error = Reservation::new(addr).expect_err("the port is taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&addr.to_string()), "{error}");
    }

    #[test]
    fn port_zero_becomes_a_port_that_several_listeners_can_bind() {
        let reservation = Reservation::new(ANY).expect("a free port");
        assert_ne!(reservation.addr().port(), 0);
        let _first = sharing_listener(reservation.addr()).expect("first listener");
        let _second = sharing_listener(reservation.addr()).expect("second listener");
    }

    #[test]
    fn the_reservation_takes_no_connections_away_from_the_listener() {
        let reservation = Reservation::new(ANY).expect("a free port");
        let listener = sharing_listener(reservation.addr()).expect("listener");
        for _ in 0..64 {
            let client = TcpStream::connect(reservation.addr()).expect("connect");
            let (_accepted, peer) = listener.accept().expect("accept");
            assert_eq!(peer, client.local_addr().expect("address"));
        }
    }

    #[test]
    fn nobody_is_refused_before_anybody_listens() {
        let reservation = Reservation::new(ANY).expect("a free port");
        let error = TcpStream::connect(reservation.addr()).expect_err("nobody listens");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_port_can_be_claimed_once() {
        let reservation = Reservation::new(ANY).expect("a free port");
        assert_refused(reservation.addr());
        let listener = sharing_listener(reservation.addr()).expect("listener");
        assert_refused(reservation.addr());
        drop(reservation);
        assert_refused(listener.local_addr().expect("address"));
    }

    #[test]
    fn a_port_on_which_a_stranger_listens_is_refused() {
        let stranger = TcpListener::bind(undisturbed(1)).expect("a free port");
        let addr = stranger.local_addr().expect("address");
        assert_refused(addr);
        assert_refused(SocketAddr::from((Ipv4Addr::UNSPECIFIED, addr.port())));
        drop(stranger);
        Reservation::new(addr).expect("free again");
    }

    /// The server closes first, so that the connection lingers on its side.
    fn leave_time_wait(listener: &TcpListener) {
        let mut client =
            TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        drop(listener.accept().expect("accept"));
        assert_eq!(client.read(&mut [0]).expect("end of stream"), 0);
    }

    #[test]
    fn what_lingers_from_an_earlier_server_is_no_obstacle() {
        let reservation = Reservation::new(undisturbed(2)).expect("a free port");
        let addr = reservation.addr();
        let sharing = sharing_listener(addr).expect("listener");
        leave_time_wait(&sharing);
        drop((reservation, sharing));
        drop(Reservation::new(addr).expect("after a server of ours"));

        let stranger = TcpListener::bind(undisturbed(3)).expect("a free port");
        let addr = stranger.local_addr().expect("address");
        leave_time_wait(&stranger);
        drop(stranger);
        let reservation = Reservation::new(addr).expect("after a server without SO_REUSEPORT");
        sharing_listener(reservation.addr()).expect("listener");
    }

    #[test]
    fn an_address_of_another_machine_is_refused_in_words() {
        let elsewhere = SocketAddr::from(([192, 0, 2, 1], 0));
        let error = Reservation::new(elsewhere).expect_err("not ours");
        assert!(
            error.to_string().contains("not an address of this machine"),
            "{error}"
        );
    }

    #[test]
    fn ipv6_works_where_there_is_any() {
        let any = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
        match Reservation::new(any) {
            Ok(reservation) => {
                sharing_listener(reservation.addr()).expect("listener");
            }
            Err(error) => println!("skipped: no IPv6 here: {error}"),
        }
    }
}
