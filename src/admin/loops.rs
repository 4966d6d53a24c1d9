//! The library's accept loop, and that there is one as long as the server runs.
//!
//! When the system refuses the stack of a connection the loop ends by a panic, and its listener with it: whoever connects is
//! refused from then on. Nothing can be caught in there, but from outside it can be seen that it has ended, and another
//! can be started on the same port. The thread `admin` looks, so the port is closed for a second or so after each time.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use may::coroutine::JoinHandle;
use may_minihttp::HttpServiceFactory;

use super::Factory;
use crate::http::without_panic;

/// The library's accept loop.
pub struct Port {
    addr: SocketAddr,
    factory: Factory,
    accepting: JoinHandle<()>,
    /// The loop has ended, could not be started again, and that is logged.
    is_closed: bool,
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("addr", &self.addr)
            .finish_non_exhaustive()
    }
}

impl Port {
    /// Starts the loop on `addr`.
    ///
    /// # Errors
    /// The port can't be bound, or there is no memory for the loop's stack.
    pub fn open(addr: SocketAddr, factory: Factory) -> io::Result<Port> {
        Ok(Port {
            addr,
            accepting: accept(addr, factory.clone())?,
            factory,
            is_closed: false,
        })
    }

    /// Starts the loop again if it has ended.
    pub fn keep_open(&mut self) {
        if !self.accepting.is_done() {
            return;
        }
        match accept(self.addr, self.factory.clone()) {
            Ok(accepting) => {
                (self.accepting, self.is_closed) = (accepting, false);
                log::warn!("the admin port had closed by itself and is open again");
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_closed, true) {
                    log::error!(
                        "the admin port has closed by itself and can't be opened for now: {error}"
                    );
                }
            }
        }
    }
}

fn accept(addr: SocketAddr, factory: Factory) -> io::Result<JoinHandle<()>> {
    without_panic(|| factory.start(addr))
}
