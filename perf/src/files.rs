//! The files that other tools read: `.hgrm` for HdrHistogram's plotter, `.hlog` for its log tools, CSV for a spreadsheet.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use crate::latencies::Latencies;
use crate::record::{IntervalRecord, Sample};

/// Reported values per halving of the distance to 100 %, as HdrHistogram's own tools default to.
const TICKS_PER_HALF: u32 = 5;
const NANOS_PER_MILLISECOND: f64 = 1e6;

/// Writes a percentile distribution in milliseconds, in the layout of HdrHistogram's `outputPercentileDistribution`.
///
/// # Errors
/// Those of `out`.
pub fn write_hgrm(latencies: &Latencies, out: &mut impl Write) -> io::Result<()> {
    let histogram = latencies.histogram();
    writeln!(
        out,
        "{:>12} {:>14} {:>10} {:>14}\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    )?;
    let mut total = 0;
    for step in histogram.iter_quantiles(TICKS_PER_HALF) {
        total += step.count_since_last_iteration();
        let value = step.value_iterated_to() as f64 / NANOS_PER_MILLISECOND;
        let quantile = step.quantile_iterated_to();
        if quantile < 1.0 {
            writeln!(
                out,
                "{value:>12.3} {quantile:.12} {total:>10} {:>14.2}",
                1.0 / (1.0 - quantile)
            )?;
        } else {
            writeln!(out, "{value:>12.3} {quantile:.12} {total:>10}")?;
        }
    }
    let (mean, deviation) = (
        histogram.mean() / NANOS_PER_MILLISECOND,
        histogram.stdev() / NANOS_PER_MILLISECOND,
    );
    let max = histogram.max() as f64 / NANOS_PER_MILLISECOND;
    writeln!(
        out,
        "#[Mean    = {mean:>12.3}, StdDeviation   = {deviation:>12.3}]"
    )?;
    writeln!(
        out,
        "#[Max     = {max:>12.3}, Total count    = {:>12}]",
        histogram.len()
    )?;
    let sub_buckets =
        2u64.pow(f64::log2(2.0 * 10f64.powi(histogram.sigfig().into())).ceil() as u32);
    writeln!(
        out,
        "#[Buckets = {:>12}, SubBuckets     = {sub_buckets:>12}]",
        histogram.buckets()
    )
}

/// Writes every sample as CSV, in the order of the requests. Times are nanoseconds after the start of the run, its warm-up
/// included; `written_ns` is empty for a request that never left.
///
/// # Errors
/// Those of `out`.
pub fn write_dump(
    samples: &mut [Sample],
    tiers: &[String],
    out: &mut impl Write,
) -> io::Result<()> {
    samples.sort_unstable_by_key(|sample| sample.number);
    writeln!(
        out,
        "number,tier,outcome,due_ns,written_ns,done_ns,corrected_ns,uncorrected_ns"
    )?;
    for sample in samples {
        let Sample {
            number,
            tier,
            outcome,
            due_ns,
            written_ns,
            done_ns,
        } = *sample;
        let written = written_ns.map(|at| at.to_string()).unwrap_or_default();
        let (corrected, uncorrected) = (sample.corrected_ns(), sample.uncorrected_ns());
        let tier = &tiers[tier];
        writeln!(
            out,
            "{number},{tier},{outcome},{due_ns},{written},{done_ns},{corrected},{uncorrected}"
        )?;
    }
    Ok(())
}

/// Writes an interval log from a thread of its own: compressing a histogram takes longer than the run's own work of a
/// second.
#[derive(Debug)]
pub struct IntervalLog {
    intervals: Sender<IntervalRecord>,
    thread: JoinHandle<io::Result<()>>,
}

impl IntervalLog {
    /// Creates the file; `started` is the start of the measured part.
    ///
    /// # Errors
    /// If the file can't be created or the thread can't be started.
    pub fn create(path: &Path, tiers: Vec<String>, started: SystemTime) -> io::Result<IntervalLog> {
        let mut file = BufWriter::new(File::create(path)?);
        let (intervals, received) = mpsc::channel::<IntervalRecord>();
        let body = move || {
            let mut serializer = V2DeflateSerializer::new();
            let mut log = IntervalLogWriterBuilder::new()
                .add_comment("latency of good answers from the scheduled time, in nanoseconds; maxima in milliseconds")
                .with_start_time(started)
                .with_base_time(started)
                .with_max_value_divisor(NANOS_PER_MILLISECOND)
                .begin_log_with(&mut file, &mut serializer)?;
            for interval in received {
                let start = Duration::from_secs(interval.second.into());
                for (tier, latencies) in tiers.iter().zip(&interval.tiers) {
                    let written = log.write_histogram(
                        latencies.histogram(),
                        start,
                        Duration::from_secs(1),
                        Tag::new(tier),
                    );
                    written.map_err(|error| io::Error::other(format!("{error:?}")))?;
                }
            }
            drop(log);
            file.flush()
        };
        let thread = std::thread::Builder::new()
            .name("hlog".to_owned())
            .spawn(body)?;
        Ok(IntervalLog { intervals, thread })
    }

    /// Adds a second.
    pub fn add(&self, interval: &IntervalRecord) {
        // A writer that is gone tells why in `finish`.
        let _ = self.intervals.send(interval.clone());
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// What went wrong on the way.
    pub fn finish(self) -> io::Result<()> {
        drop(self.intervals);
        self.thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the writer of the interval log panicked")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Outcome;
    use hdrhistogram::Histogram;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    fn hundred() -> Latencies {
        let mut latencies = Latencies::default();
        (1..=100).for_each(|ms| latencies.record(ms * 1_000_000));
        latencies
    }

    #[test]
    fn a_percentile_file_has_the_layout_of_hdr_histogram() {
        let mut out = Vec::new();
        write_hgrm(&hundred(), &mut out).expect("a Vec takes everything");
        let text = String::from_utf8(out).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "       Value     Percentile TotalCount 1/(1-Percentile)"
        );
        assert_eq!(lines[1], "");
        assert!(
            lines
                .iter()
                .any(|line| line.contains(" 0.500000000000         50           2.00")),
            "{text}"
        );
        assert!(
            lines
                .iter()
                .any(|line| line.ends_with(" 1.000000000000        100")),
            "{text}"
        );
        assert!(text.contains("#[Mean    ="));
        assert!(text.contains("Total count    =          100]"));
        assert!(text.contains("SubBuckets     =         2048]"));
    }

    #[test]
    fn an_interval_log_gives_the_histograms_back() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("run.hlog");
        let log = IntervalLog::create(
            &path,
            vec!["paid".into(), "free".into()],
            SystemTime::UNIX_EPOCH,
        )
        .expect("a log");
        let mut interval = IntervalRecord::new(3, 2);
        interval.tiers[1] = hundred();
        log.add(&interval);
        log.finish().expect("written");

        let text = std::fs::read(&path).expect("readable");
        let mut found = Vec::new();
        for entry in IntervalLogIterator::new(&text) {
            if let LogEntry::Interval(entry) = entry.expect("parses") {
                let bytes = base64(entry.encoded_histogram());
                let histogram: Histogram<u64> = Deserializer::new()
                    .deserialize(&mut bytes.as_slice())
                    .expect("a histogram");
                found.push((
                    entry.tag().expect("a tag").as_str().to_owned(),
                    entry.start_timestamp(),
                    histogram,
                ));
            }
        }
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[1].0.as_str(), found[1].1),
            ("free", Duration::from_secs(3))
        );
        assert_eq!(&found[1].2, hundred().histogram());
    }

    /// Enough of base 64 to check what was written.
    fn base64(text: &str) -> Vec<u8> {
        let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut bits = 0u32;
        let mut bytes = Vec::new();
        for (index, char) in text.trim_end_matches('=').chars().enumerate() {
            bits = bits << 6 | alphabet.find(char).expect("base 64") as u32;
            if index % 4 != 0 {
                bytes.push((bits >> (6 - 2 * (index % 4))) as u8);
            }
        }
        bytes
    }

    #[test]
    fn a_dump_has_a_line_for_every_request_in_order() {
        let sample = |number, written_ns| Sample {
            number,
            tier: 0,
            outcome: if number == 1 {
                Outcome::Timeout
            } else {
                Outcome::Status(200)
            },
            due_ns: 10 * number,
            written_ns,
            done_ns: 10 * number + 7,
        };
        let mut out = Vec::new();
        write_dump(
            &mut [sample(2, Some(25)), sample(1, None)],
            &["free".into()],
            &mut out,
        )
        .expect("a Vec");
        let text = String::from_utf8(out).expect("text");
        assert!(
            text.ends_with("\n1,free,timeout,10,,17,7,7\n2,free,200,20,25,27,7,2\n"),
            "{text}"
        );
    }
}
