use std::io::ErrorKind;
use std::net::SocketAddr;

use super::*;

fn page(at_seconds: u64, text: &str) -> Page {
    Page {
        at: at_seconds * SECOND,
        metrics: Snapshot::parse(text),
    }
}

fn process(cpu_seconds: f64) -> Process {
    Process {
        cpu_seconds,
        rss_bytes: 1000,
    }
}

/// An admin port that nobody asks: the scrape is made up by the test.
fn watching() -> Monitor {
    Monitor::new(Some("127.0.0.1:9"), None).expect("an address")
}

#[test]
fn a_failed_scrape_takes_nothing_away() {
    let mut monitor = watching();
    let up = |count: u32| {
        Ok(format!(
            "funicular_capacity_requests_per_second 10\nfunicular_zone 0\nprocess_cpu_seconds_total {count}\n\
             process_resident_memory_bytes 5\nfunicular_stage_seconds_count{{stage=\"parse\"}} {count}\n\
             funicular_stage_seconds_bucket{{stage=\"parse\",le=\"+Inf\"}} {count}\n"
        ))
    };
    monitor.take_reading(|_| Err(ErrorKind::TimedOut.into()));
    monitor.take_reading(|_| up(1));
    monitor.take_reading(|_| up(3));
    monitor.take_reading(|_| Ok("<html>".to_owned()));
    monitor.take_reading(|_| Err(ErrorKind::WouldBlock.into()));
    let found = monitor.findings(100, 5.0);
    assert_eq!(found.stages[0].count, 2);
    assert_eq!(found.gpu.expect("metrics").capacity, 10.0);
    assert_eq!(found.server.expect("its process").cpu_seconds, 2.0);
    assert_eq!(found.zones.len(), 2);
    assert_eq!(
        found.warning.as_deref(),
        Some("3 of 5 scrapes of http://127.0.0.1:9/metrics failed (timed out)")
    );
}

#[test]
fn one_page_alone_says_nothing_about_the_run() {
    let mut monitor = watching();
    monitor.take_reading(|_| Ok("funicular_capacity_requests_per_second 10\n".to_owned()));
    monitor.take_reading(|_| Err(ErrorKind::ConnectionRefused.into()));
    let found = monitor.findings(1, 1.0);
    assert_eq!((found.gpu, found.stages), (None, Vec::new()));
}

#[test]
fn what_is_not_there_is_found_before_the_run() {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    // Bound and not listening, so the port stays nobody's.
    let nobody = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&nobody, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let address = getsockname(&nobody).expect("bound");
    let address = SocketAddr::try_from(address)
        .expect("an IP address")
        .to_string();
    let wrong = Monitor::new(Some(&address), None).expect("an address");
    let said = wrong.check().expect_err("nobody there").to_string();
    assert!(
        said.contains(&address) && said.contains("refused"),
        "{said}"
    );
    let gone = Monitor::new(None, Some(0)).expect("a number").check();
    assert!(matches!(gone, Err(MonitorError::Process(0))));
    let here = Monitor::new(None, Some(std::process::id())).expect("a number");
    here.check().expect("we are here");
}

#[test]
fn two_pages_tell_what_happened_between_them() {
    let text = |batches: u64, seconds: f64| {
        format!(
            "funicular_batch_size_bucket{{le=\"10\"}} 1\nfunicular_batch_size_bucket{{le=\"100\"}} {0}\n\
             funicular_batch_size_bucket{{le=\"+Inf\"}} {0}\nfunicular_batch_size_sum {1}\n\
             funicular_capacity_requests_per_second 2000\nfunicular_gpu_up{{gpu=\"0\"}} 1\nfunicular_gpu_up{{gpu=\"1\"}} 1\n\
             funicular_gpu_busy_seconds_total{{gpu=\"0\"}} {2}\nfunicular_gpu_busy_seconds_total{{gpu=\"1\"}} 0\n\
             funicular_batch_launches_total{{reason=\"full\"}} {0}\nfunicular_batch_launches_total{{reason=\"hold\"}} 3\n\
             funicular_stage_seconds_bucket{{stage=\"queue\",le=\"0.01\"}} {0}\n\
             funicular_stage_seconds_bucket{{stage=\"queue\",le=\"+Inf\"}} {0}\n\
             funicular_stage_seconds_sum{{stage=\"queue\"}} {3}\nfunicular_stage_seconds_count{{stage=\"queue\"}} {0}\n\
             process_cpu_seconds_total {2}\nprocess_resident_memory_bytes 1000\nfunicular_requests_total{{code=\"200\"}} {1}\n\
             funicular_zone 1\nfunicular_backlog_seconds 0.3\nfunicular_queue_depth{{tier=\"free\"}} 7\n",
            batches,
            batches * 50,
            seconds,
            batches as f64 * 0.004,
        )
    };
    let (first, last) = (page(0, &text(10, 1.0)), page(10, &text(110, 9.0)));
    let monitor = Monitor {
        zones: zone_point(&last.metrics, 10 * SECOND).into_iter().collect(),
        pages: Some(Ends { first, last }),
        processes: Some(Ends {
            first: process(1.0),
            last: process(9.0),
        }),
        rss_max: 1000,
        ..Monitor::default()
    };
    let found = monitor.findings(5000, 500.0);

    let gpu = found.gpu.expect("GPUs");
    assert_eq!((gpu.gpus, gpu.batches, gpu.batch_size_mean), (2, 100, 50.0));
    assert_eq!((gpu.slot_utilisation, gpu.busy_fraction), (0.25, 0.4));
    assert_eq!(
        gpu.batch_sizes[1],
        SizeBucket {
            up_to: Some(100),
            count: 100
        }
    );
    assert_eq!(gpu.batch_sizes.len(), 2);
    assert_eq!(gpu.launches, BTreeMap::from([("full".into(), 100)]));
    assert_eq!(found.stages.len(), 1);
    assert!((found.stages[0].mean_ms - 4.0).abs() < 1e-9);
    let server = found.server.expect("a server");
    assert_eq!(
        (server.cpu_seconds, server.cpu_seconds_per_1000_requests),
        (8.0, 1.6)
    );
    assert_eq!(found.zones[0].zone, "yellow");
    assert_eq!(
        found.zones[0].queue_depth,
        BTreeMap::from([("free".into(), 7)])
    );
}

#[test]
fn our_own_process_can_be_read() {
    let process = read_process(std::process::id()).expect("we are here");
    assert!(process.rss_bytes > 100_000);
    assert!(read_process(0).is_none());
}
