//! A bad network between a server and its workers.

use crate::support::{heavy, wait_for};

use super::proxy::Proxy;
use super::{batches, described, failed, server, traffic, wait_answered, wait_up, worker};

#[test]
fn whatever_the_network_does_nobody_gets_a_wrong_answer_and_no_batch_runs_twice() {
    let _machine = heavy();
    let workers = [worker("20", &[]), worker("20", &[])];
    let proxies = [
        Proxy::start(workers[0].listen(), 1),
        Proxy::start(workers[1].listen(), 2),
    ];
    let flags = ["--batch-max", "8", "--batch-timeout-ms", "10000"];
    let mut server = server(&proxies.each_ref().map(Proxy::address), &flags);
    let statuses = traffic(&server, 16, || {
        proxies.iter().for_each(|proxy| proxy.be_mean(true));
        wait_for("a lot of mischief", || {
            proxies.iter().all(|proxy| proxy.mischief() >= 60)
        });
        proxies.iter().for_each(|proxy| proxy.be_mean(false));
        wait_up_again(&server);
        wait_answered(&server, 20);
    });
    wait_up(&mut server, 2);
    // A worker that is nonsensical twice in a row is left alone for a while; with both of them that is a 503.
    let told = statuses.iter().filter(|&&status| status == 503).count();
    assert_eq!(failed(&statuses), told, "{}", described(&statuses));
    assert!(
        told * 4 < statuses.len(),
        "{told} of {} were told to come back",
        statuses.len()
    );
    for (worker, proxy) in workers.iter().zip(&proxies) {
        let (ran, seen) = (batches(worker), proxy.batches());
        assert!(
            ran > 10.0 && ran <= seen as f64,
            "{ran} batches ran, {seen} were sent"
        );
        let refused = worker.metric("funicular_requests_total", &[("code", "409")]);
        assert_eq!(refused, 0.0, "an id stands for one batch");
    }
}

fn wait_up_again(server: &crate::support::Server) {
    wait_for("a worker to be up", || {
        server.metric("funicular_gpu_up", &[]) >= 1.0
    });
}

#[test]
fn a_connection_that_is_lost_in_mid_batch_costs_no_second_run_and_no_attempt() {
    let _machine = heavy();
    let worker = worker("100", &[]);
    let proxy = Proxy::start(worker.listen(), 7);
    let server = server(&[proxy.address()], &["--batch-timeout-ms", "20000"]);
    let statuses = traffic(&server, 8, || {
        for _ in 0..5 {
            wait_for("a batch at the worker", || {
                worker.status()["gpus"][0]["running"].is_u64()
            });
            proxy.cut_all();
            wait_answered(&server, 8);
        }
    });
    assert_eq!(failed(&statuses), 0, "{}", described(&statuses));
    let (ran, seen) = (batches(&worker), proxy.batches());
    assert!(ran <= seen as f64, "{ran} batches ran, {seen} were sent");
    assert_eq!(server.metric("funicular_retries_total", &[]), 0.0);
}
