//! The screens word for word, and that the output of `check` reads back as the same configuration.

use std::net::SocketAddr;
use std::path::Path;

use proptest::prelude::*;

use super::{curl, effective, reachable, start_up};
use crate::config::{Config, Machine, RawConfig};

fn machine() -> Machine {
    Machine {
        cores: (0..8).collect(),
        open_files: 1 << 20,
        memory_maps: 65_530,
    }
}

fn config(file: &str) -> Config {
    let raw = RawConfig::parse(Path::new("f.toml"), file).expect("TOML with known settings");
    Config::resolve(&raw, &machine()).expect("a sound configuration")
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

#[test]
fn the_start_up_screen_shows_what_was_bound() {
    let config = config("listen = '127.0.0.1:0'\nadmin = '127.0.0.1:0'");
    let screen = start_up(
        &config,
        address("127.0.0.1:41234"),
        Some(address("127.0.0.1:41235")),
    );
    let expected = r#"
  listening on http://127.0.0.1:41234
  admin on http://127.0.0.1:41235

  executor     simulated: 100 ms a batch
  GPUs         4
  batches      up to 100 tickets, paced (patience 1), held 40 ms at most while a GPU is free
  capacity     4,000 requests/s (4 x 100 / 100 ms)
  deadline     2 s, less where the caller asks for less
  queues       65,536 tickets for each tier
  connections  20,000 at most
  requests     body 1 MiB, input 64 KiB, output 256 KiB; 128 headers in 16 KiB, target 8 KiB
  timeouts     header 10 s, body 30 s, idle 75 s, write 30 s
  model        llm-v1; requests without X-Tier are free
  cores        8 (pinned: 0-7)

Try it:
  curl http://127.0.0.1:41234/v1/inference -H 'Content-Type: application/json' -d '{"input": "Hello, Funicular!"}'
"#;
    let (title, rest) = screen.split_once('\n').expect("a title");
    assert_eq!(title, format!("funicular {}", super::VERSION));
    assert_eq!(rest, expected);
}

#[test]
fn the_start_up_screen_shows_what_differs() {
    let config = config(
        "listen = '0.0.0.0:80'\nadmin = 'off'\n[batch]\npatience = inf\n\
         [simulated]\nlatency_ms = 0\njitter = 0.25\ncold_start_ms = 3000",
    );
    let screen = start_up(&config, address("0.0.0.0:80"), None);
    for line in [
        "  listening on http://0.0.0.0:80\n  admin off\n",
        "  executor     simulated: 0 ms a batch, give or take 25 %, 3 s to start\n",
        "  batches      up to 100 tickets, launched full or after 40 ms (patience inf)\n",
        "  capacity     unknown until the first batch is measured\n",
        "  warning: listening on 0.0.0.0:80, beyond this machine",
        "  curl http://127.0.0.1:80/v1/inference -H",
    ] {
        assert!(screen.contains(line), "{line:?} is missing in\n{screen}");
    }
}

#[test]
fn the_curl_line_leads_to_an_address_that_can_be_reached() {
    assert_eq!(reachable(address("0.0.0.0:1")), address("127.0.0.1:1"));
    assert_eq!(reachable(address("[::]:1")), address("[::1]:1"));
    assert_eq!(reachable(address("192.0.2.7:1")), address("192.0.2.7:1"));
    assert!(curl(address("[::]:1")).starts_with("curl 'http://[::1]:1/v1/inference' -H"));
}

#[test]
fn check_prints_every_setting_and_the_derived_limits() {
    let text = effective(&config(""));
    let expected = r#"
# capacity                 4,000 requests/s (4 x 100 / 100 ms)
# acceptor cores           8
# open files needed        20,160
# memory maps needed       44,096
# tickets waiting, at most 196,608
# waiting input, at most   12 GiB
# input of one batch       6.2 MiB at most
# output of one batch      25 MiB at most
# head of one request      24 KiB at most
# shutdown                 30 s at most

listen           = "127.0.0.1:8080"
admin            = "127.0.0.1:9090"
cores            = "0-7"
max_connections  = 20000
model            = "llm-v1"
default_tier     = "free"
deadline_ms      = 2000
queue_bound      = 65536
gpus             = 4
executor         = "simulated"
batch_timeout_ms = "auto"
log_level        = "info"

[batch]
batch_max        = 100
hold_max_ms      = 40
patience         = 1

[simulated]
latency_ms       = 100
jitter           = 0
cold_start_ms    = 0
"#;
    assert!(text.contains(expected), "{text}");
    for key in crate::config::keys::ALL {
        let line = format!("\n{:<16} = ", key.name);
        assert!(text.contains(&line), "{key} is missing in\n{text}");
    }
}

#[derive(Clone, Debug)]
struct Drawn {
    file: String,
}

/// Sound configurations, each setting away from its default more often than not.
fn drawn() -> impl Strategy<Value = Drawn> {
    let patience = prop_oneof![
        Just("inf".to_owned()),
        (0_u32..5).prop_map(|whole| whole.to_string()),
        (0.0..1e20).prop_map(|number: f64| format!("{number:e}")),
    ];
    let general = (
        1_u32..1_024,
        4_096_u32..1 << 24,
        4_001_u32..600_000,
        1_u32..30_000,
    );
    let batch = (
        1_u32..=4_096,
        0_u32..=4_000,
        patience,
        0_u32..600_000,
        0.0..=1.0_f64,
    );
    let words = (
        prop_oneof![Just("enterprise"), Just("paid"), Just("free")],
        prop_oneof![
            Just("auto".to_owned()),
            (1_u32..9).prop_map(|n| n.to_string()),
            Just("1,3-5".to_owned())
        ],
        "[ -~é🚡]{1,40}",
        prop_oneof![
            Just("\"auto\"".to_owned()),
            (1_u32..86_400_000).prop_map(|n| n.to_string())
        ],
        prop_oneof![
            Just("off"),
            Just("127.0.0.1:1"),
            Just("[::1]:0"),
            Just("0.0.0.0:65535")
        ],
    );
    let times = (1_u32..86_400_000, 0_u32..86_400_000);
    (general, batch, words, times).prop_map(|(general, batch, words, times)| {
        let (gpus, queue, deadline, connections) = general;
        let (batch_max, hold, patience, latency, jitter) = batch;
        let (tier, cores, model, timeout, admin) = words;
        let (idle, grace) = times;
        let model = toml::Value::from(model);
        Drawn {
            file: format!(
                "gpus = {gpus}\nqueue_bound = {queue}\ndeadline_ms = {deadline}\nmax_connections = {connections}\n\
                 default_tier = \"{tier}\"\ncores = \"{cores}\"\nmodel = {model}\nbatch_timeout_ms = {timeout}\n\
                 admin = \"{admin}\"\n[batch]\nbatch_max = {batch_max}\nhold_max_ms = {hold}\npatience = {patience}\n\
                 [simulated]\nlatency_ms = {latency}\njitter = {jitter:?}\n[timeouts]\nidle_ms = {idle}\n\
                 [drain]\ngrace_ms = {grace}\n"
            ),
        }
    })
}

proptest! {
    #[test]
    fn what_check_prints_reads_back_as_the_same_configuration(drawn in drawn()) {
        let first = config(&drawn.file);
        let text = effective(&first);
        let second = config(&text);
        prop_assert_eq!(&second, &first, "{}", text);
        prop_assert_eq!(effective(&second), text);
    }
}
