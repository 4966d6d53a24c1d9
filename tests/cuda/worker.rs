//! A worker that runs kernels, behind a server on another machine.

use crate::machine::{Machine, wait_all_up};
use crate::steady::widened;
use crate::support::{Server, in_parallel, unique};

#[test]
fn a_worker_runs_kernels_for_a_server_elsewhere() {
    let Some(machine) = Machine::new(2) else {
        return;
    };
    let mut worker = machine.start_as(&["worker", "--executor", "cuda", "--cores", "1"], &[]);
    wait_all_up(&mut worker);
    let url = format!("http://{}", worker.listen());
    let mut server = Server::start(&widened(&["--worker", &url, "--cores", "1"]));
    wait_all_up(&mut server);
    in_parallel(12, |_| {
        let mut client = server.connect();
        for _ in 0..20 {
            let text = unique("far away");
            client.infer(&text).expect_output(&text);
        }
    });
}
