//! The screens word for word, and that the output of `check` reads back as the same configuration.

use std::net::SocketAddr;
use std::path::Path;

use proptest::prelude::*;

use super::{curl, effective, reachable, start_up};
use crate::config::{Config, Identity, Machine, RawConfig};

fn machine() -> Machine {
    Machine {
        cores: (0..8).collect(),
        open_files: 1 << 20,
        memory_maps: 65_530,
        address_space_bytes: u64::MAX,
        cuda_devices: None,
        memory_bytes: Some(16 << 30),
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
  deadline     2 s or four batches, whichever is longer; less where the caller asks for less
  admission    target latency 500 ms; backlog: yellow from 0.2 s, red from 0.5 s, nobody from 1 s
  queues       65,536 tickets for each tier
  connections  20,000 at most, their requests 4 GiB
  requests     body 1 MiB, input 64 KiB, output 256 KiB; 128 headers in 16 KiB, target 8 KiB
  timeouts     header 10 s, body 30 s, idle 75 s, write 30 s
  model        llm-v1
  identity     trusted: X-Tier is believed, requests without it are free
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
        "listen = '0.0.0.0:80'\nadmin = 'off'\ndeadline_ms = 1500\n[batch]\npatience = inf\n\
         [simulated]\nlatency_ms = 0\njitter = 0.25\ncold_start_ms = 3000",
    );
    let screen = start_up(&config, address("0.0.0.0:80"), None);
    for line in [
        "  listening on http://0.0.0.0:80\n  admin off\n",
        "  executor     simulated: 0 ms a batch, give or take 25 %, 3 s to start\n",
        "  batches      up to 100 tickets, launched full or after 40 ms (patience inf)\n",
        "  capacity     unknown until the first batch is measured\n",
        "  deadline     1,500 ms, less where the caller asks for less\n",
        "  warning: listening on 0.0.0.0:80, beyond this machine",
        "  curl http://127.0.0.1:80/v1/inference -H",
    ] {
        assert!(screen.contains(line), "{line:?} is missing in\n{screen}");
    }
}

#[test]
fn the_start_up_screen_shows_keys_shares_and_scripted_faults() {
    let config = config(
        "identity = 'keys'\nkeys_file = '/etc/k.toml'\n[admission]\ntarget_latency_ms = 1000\nyellow_s = 0.05\n\
         min_share = { paid = 0.25, free = 0.015 }\n[simulated]\nfaults = ['kind=hang,gpu=1', 'kind=slow']",
    );
    let screen = start_up(&config, address("127.0.0.1:1"), None);
    for line in [
        "  admission    target latency 1 s; backlog: yellow from 0.05 s, red from 0.5 s, nobody from 1 s; \
         paid gets 25 % of each batch; free gets 1.5 % of each batch\n",
        "  identity     the keys of /etc/k.toml; X-Tier is ignored\n",
        "  curl http://127.0.0.1:1/v1/inference -H 'Content-Type: application/json' \
         -H 'Authorization: Bearer KEY' -d",
        "  warning: GPUs will fail as scripted: kind=hang,gpu=1,ms=0; kind=slow,factor=10\n",
    ] {
        assert!(screen.contains(line), "{line:?} is missing in\n{screen}");
    }
}

#[test]
fn the_curl_line_leads_to_an_address_that_can_be_reached() {
    assert_eq!(reachable(address("0.0.0.0:1")), address("127.0.0.1:1"));
    assert_eq!(reachable(address("[::]:1")), address("[::1]:1"));
    assert_eq!(reachable(address("192.0.2.7:1")), address("192.0.2.7:1"));
    let trusted = Identity::Trusted;
    assert!(curl(address("[::]:1"), &trusted).starts_with("curl 'http://[::1]:1/v1/inference' -H"));
}

#[test]
fn check_prints_every_setting_and_the_derived_limits() {
    let text = effective(&config(""));
    let expected = r#"
# capacity                 4,000 requests/s (4 x 100 / 100 ms)
# acceptor cores           8
# open files needed        20,224
# memory maps needed       44,096
# tickets waiting, at most 196,608
# request memory, at most  4.1 GiB
# input of one batch       6.2 MiB at most
# output of one batch      25 MiB at most
# head of one request      24 KiB at most
# shutdown                 30 s at most

listen             = "127.0.0.1:8080"
admin              = "127.0.0.1:9090"
cores              = "auto"  # here: "0-7"
max_connections    = "auto"  # here: 20000
model              = "llm-v1"
default_tier       = "free"
identity           = "trusted"
keys_file          = ""
deadline_ms        = "auto"
queue_bound        = 65536
gpus               = 4
executor           = "simulated"
batch_timeout_ms   = "auto"
canary             = "funicular canary"
log_level          = "info"

[batch]
batch_max          = 100
hold_max_ms        = 40
patience           = 1

[admission]
target_latency_ms  = 500
yellow_s           = 0.2
red_s              = 0.5
limit_s            = 1
min_share          = { enterprise = 0, paid = 0, free = 0 }

[python]
target             = ""
bin                = "auto"
env                = []
start_timeout_s    = 300

[cuda]
module             = ""
entry              = "batchstring"
block              = 256
shared_bytes       = 0
output_factor      = 1
output_extra_bytes = 256
work_us            = 0

[simulated]
latency_ms         = 100
jitter             = 0
cold_start_ms      = 0
faults             = []
faults_admin       = false
"#;
    assert!(text.contains(expected), "{text}");
    let chosen = effective(&config("cores = 2\nmax_connections = 300"));
    assert!(
        chosen.contains("\ncores              = \"0-1\"\nmax_connections    = 300\n"),
        "{chosen}"
    );
    for key in crate::config::keys::ALL {
        let line = format!("\n{:<18} = ", key.name);
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
        prop::option::weighted(0.8, 4_001_u32..600_000),
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
    let everything = (general, batch, words, times, door(), faults());
    everything.prop_map(|(general, batch, words, times, door, faults)| {
        let (gpus, queue, deadline, connections) = general;
        let (batch_max, hold, patience, latency, jitter) = batch;
        // Left to the server, the deadline may be as short as 2 s.
        let hold = if deadline.is_some() { hold } else { hold / 3 };
        let deadline = deadline.map_or("\"auto\"".to_owned(), |deadline| deadline.to_string());
        let (tier, cores, model, timeout, admin) = words;
        let (idle, grace) = times;
        let model = toml::Value::from(model);
        Drawn {
            file: format!(
                "gpus = {gpus}\nqueue_bound = {queue}\ndeadline_ms = {deadline}\nmax_connections = {connections}\n\
                 default_tier = \"{tier}\"\ncores = \"{cores}\"\nmodel = {model}\nbatch_timeout_ms = {timeout}\n\
                 admin = \"{admin}\"\n{door}[batch]\nbatch_max = {batch_max}\nhold_max_ms = {hold}\npatience = {patience}\n\
                 [simulated]\nlatency_ms = {latency}\njitter = {jitter:?}\n{faults}[timeouts]\nidle_ms = {idle}\n\
                 [drain]\ngrace_ms = {grace}\n"
            ),
        }
    })
}

/// Who callers are and who is let in. `\n` of a canary is drawn more often than chance would.
fn door() -> impl Strategy<Value = String> {
    let identity = prop_oneof![
        Just(String::new()),
        "/[ -~é🚡]{1,20}".prop_map(|path| {
            let path = toml::Value::from(path);
            format!("identity = \"keys\"\nkeys_file = {path}\n")
        }),
    ];
    let canary = prop_oneof![".{0,30}", "[\n\r\t\"'\\\\ a]{0,10}"];
    let zones = (1e-6..10.0_f64, 1e-6..10.0_f64, 1e-6..1e20_f64);
    let shares = (0.0..=0.3_f64, 0.0..=0.3_f64, 0.0..=0.3_f64);
    (identity, canary, 1_u32..600_000, zones, shares).prop_map(
        |(identity, canary, target, zones, shares)| {
            let canary = toml::Value::from(canary);
            let (yellow, red, limit) = (zones.0, zones.0 + zones.1, zones.0 + zones.1 + zones.2);
            let (enterprise, paid, free) = shares;
            format!(
                "canary = {canary}\n{identity}[admission]\ntarget_latency_ms = {target}\n\
                 yellow_s = {yellow:?}\nred_s = {red:?}\nlimit_s = {limit:?}\nmin_share = \
                 {{ enterprise = {enterprise:?}, paid = {paid:?}, free = {free:?} }}\n"
            )
        },
    )
}

fn faults() -> impl Strategy<Value = String> {
    let fault = prop_oneof![
        (1_u64..100, 0_u64..10_000)
            .prop_map(|(batch, ms)| format!("kind=hang,gpu=0,batch={batch},ms={ms}")),
        (1_u64..100, 0.0..=1e4_f64)
            .prop_map(|(every, factor)| format!("kind=slow&every={every}&factor={factor}")),
        "[^,&]{0,10}".prop_map(|marker| format!("kind=raise,times=3,marker={marker}")),
    ];
    (prop::collection::vec(fault, 0..4), any::<bool>()).prop_map(|(faults, admin)| {
        let faults: Vec<String> = faults
            .into_iter()
            .map(|fault| toml::Value::from(fault).to_string())
            .collect();
        format!("faults = [{}]\nfaults_admin = {admin}\n", faults.join(", "))
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
