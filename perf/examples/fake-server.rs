//! A server that takes a constant time for everything, to try load generators on:
//! `cargo run --release -p funicular-perf --example fake-server -- 127.0.0.1:8099 100` answers after 100 ms, in upper case.
//! A GET (or a body without an `input`) is answered too, so that other generators can be pointed at it.

use std::net::TcpListener;
use std::time::Duration;

#[path = "../tests/support/mod.rs"]
#[expect(dead_code, reason = "shared with the tests, which use all of it")]
mod support;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let listen = arguments
        .next()
        .unwrap_or_else(|| "127.0.0.1:8099".to_owned());
    let delay_ms = arguments
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or(100);
    let listener = TcpListener::bind(listen)?;
    println!("{delay_ms} ms at http://{}", listener.local_addr()?);
    support::serve_on(listener, move |asked| {
        support::wait(Duration::from_millis(delay_ms));
        let body: serde_json::Value = serde_json::from_str(&asked.body).unwrap_or_default();
        let output = body["input"].as_str().unwrap_or_default().to_uppercase();
        support::answer(200, &support::json(&output))
    });
    loop {
        std::thread::park();
    }
}
