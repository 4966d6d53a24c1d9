//! The report of one run: what was asked, what to beware of, the numbers, the plots, and how to run it again.

use super::chart::slot_of_tier;
use super::escape;
use super::figures;
use super::shapes::{self, Cell};
use super::verdict::{self, Verdict};
use super::{budget, gpu, machine, number};
use crate::result::{FailIfResult, LatencySummary, RunResult, StatusResult, TierResult};

/// The whole page.
pub fn page(run: &RunResult) -> String {
    let sections = [
        header(run),
        alerts(run),
        tiles(run),
        conditions(run),
        shapes::section("What each tier saw", &tier_section(run)),
        shapes::section("Latency by percentile", &figures::percentiles(run)),
        shapes::section("Latency over time", &figures::latency_over_time(run)),
        shapes::section(
            "Throughput over time",
            &format!("{}{}", figures::throughput(run), figures::errors(run)),
        ),
        shapes::section("Where a request's time goes", &budget::section(run)),
        shapes::section("Batches", &gpu::batches(run)),
        shapes::section("Zones and backlog", &gpu::zones(run)),
        shapes::section("The generator and the server", &costs(run)),
        shapes::section("How to run it again", &about(run)),
    ];
    shapes::page(
        &format!("{} – funicular-perf", run.name),
        &sections.join("\n"),
    )
}

fn header(run: &RunResult) -> String {
    let badges: Vec<String> = Verdict::all(run).into_iter().map(badge).collect();
    let question = run
        .question
        .as_deref()
        .unwrap_or("What latency do callers see at this load?");
    let meta = [
        run.configuration.arrivals.clone(),
        machine::length(run),
        number::plural(u64::from(run.configuration.connections), "connection"),
        run.configuration.target.clone(),
        machine::start(run),
    ];
    let meta: Vec<String> = meta
        .iter()
        .filter(|m| !m.is_empty())
        .map(|m| format!("<li>{}</li>", escape::html(m)))
        .collect();
    format!(
        r#"<header><p class="eyebrow">Load report</p><h1>{} {}</h1>{}<ul class="meta">{}</ul></header>"#,
        escape::html(&run.name),
        badges.join(" "),
        shapes::paragraph("question", question),
        meta.concat()
    )
}

fn badge(verdict: Verdict) -> String {
    format!(
        r#"<span class="badge {}">{}</span>"#,
        verdict.class(),
        verdict.word()
    )
}

/// Everything that forbids taking the numbers at face value, before the numbers.
pub fn alerts(run: &RunResult) -> String {
    let mut out = String::new();
    if let Some(text) = verdict::mismatch_text(run) {
        let mut texts = vec![
            text,
            "Nothing else on this page matters until that is explained.".to_owned(),
        ];
        texts.extend(run.mismatches.examples.iter().cloned());
        out.push_str(&shapes::alert("critical", "Wrong answers", &texts));
    }
    if let Some(text) = verdict::generator_text(run) {
        let texts = [
            text,
            "The numbers below say what the generator could do, not what the server can."
                .to_owned(),
        ];
        out.push_str(&shapes::alert(
            "critical",
            "The generator was the bottleneck",
            &texts,
        ));
    }
    let warnings = verdict::other_warnings(run);
    if !warnings.is_empty() {
        let title = if warnings.len() == 1 {
            "Warning"
        } else {
            "Warnings"
        };
        out.push_str(&shapes::alert("warning", title, &warnings));
    }
    out
}

fn tiles(run: &RunResult) -> String {
    let (totals, summary) = (&run.totals, &run.latency.corrected.summary);
    let kept = number::share(totals.achieved_rate, totals.offered_rate);
    let answered = totals.ok + totals.errors;
    let errors = number::share(totals.errors as f64, answered as f64);
    let ms = |value: f64| {
        if summary.count == 0 {
            "–".to_owned()
        } else {
            number::short(value)
        }
    };
    let mut tiles = vec![
        shapes::tile(
            "offered",
            &number::short(totals.offered_rate),
            "/s",
            &scheduled(run),
        ),
        shapes::tile(
            "achieved",
            &number::short(totals.achieved_rate),
            "/s",
            &format!("{kept} of what was offered"),
        ),
        shapes::tile(
            "errors",
            &errors,
            "",
            &format!(
                "{} of {} answers",
                number::count(totals.errors),
                number::count(answered)
            ),
        ),
        shapes::tile("p50", &ms(summary.p50_ms), "ms", "all tiers, corrected"),
        shapes::tile("p95", &ms(summary.p95_ms), "ms", "all tiers, corrected"),
        shapes::tile(
            "p99",
            &ms(summary.p99_ms),
            "ms",
            &format!("maximum {} ms", ms(summary.max_ms)),
        ),
    ];
    if let Some(gpu) = &run.gpu {
        let note = format!("{} tickets in a batch", number::short(gpu.batch_size_mean));
        tiles.push(shapes::tile(
            "slot utilisation",
            &number::percent(gpu.slot_utilisation),
            "",
            &note,
        ));
    }
    if let Some(server) = &run.server {
        let cost = number::short(server.cpu_seconds_per_1000_requests);
        tiles.push(shapes::tile("server CPU", &cost, "s", "for 1,000 requests"));
    }
    format!(r#"<dl class="tiles">{}</dl>"#, tiles.concat())
}

fn scheduled(run: &RunResult) -> String {
    let kind = if run.configuration.open_loop {
        "scheduled"
    } else {
        "sent, closed loop"
    };
    format!("{} requests {kind}", number::count(run.totals.scheduled))
}

fn conditions(run: &RunResult) -> String {
    if run.fail_if.is_empty() {
        return String::new();
    }
    let row = |c: &FailIfResult| {
        let outcome = if c.failed {
            Cell::Alarm("failed".to_owned())
        } else {
            Cell::Number("passed".to_owned())
        };
        vec![
            Cell::Text(c.condition.clone()),
            Cell::Number(c.found.clone()),
            outcome,
        ]
    };
    let rows: Vec<Vec<Cell>> = run.fail_if.iter().map(row).collect();
    shapes::section(
        "Conditions",
        &shapes::table(&["the run fails if", "found", "outcome"], &rows),
    )
}

fn tier_section(run: &RunResult) -> String {
    let note = if run.configuration.open_loop {
        "Corrected latency of good answers in milliseconds: from the moment a request should have left to its last byte."
    } else {
        "Latency of good answers in milliseconds. In a closed loop a slow server slows the load as well, which can't be corrected."
    };
    let mut rows: Vec<Vec<Cell>> = run
        .tiers
        .iter()
        .enumerate()
        .map(|(i, t)| tier_row(i, t))
        .collect();
    if run.tiers.len() > 1 {
        rows.push(summary_row(
            Cell::Text("all".to_owned()),
            run.totals.achieved_rate,
            &run.latency.corrected.summary,
        ));
    }
    let heads = [
        "tier", "good/s", "mean, ms", "p50", "p90", "p95", "p99", "p99.9", "max",
    ];
    let statuses: Vec<Vec<Cell>> = run
        .tiers
        .iter()
        .enumerate()
        .flat_map(|(i, t)| status_rows(i, t))
        .collect();
    let status_heads = ["tier", "outcome", "count", "share", "p50, ms", "p99", "max"];
    format!(
        "{}{}<h3>By outcome</h3>{}",
        shapes::paragraph("note", note),
        shapes::table(&heads, &rows),
        shapes::table(&status_heads, &statuses)
    ) + &refusals(run)
}

/// What the server said where it did not serve.
fn refusals(run: &RunResult) -> String {
    let name = |status: &String| format!("the first {status}");
    let names: Vec<String> = run.refusals.keys().map(name).collect();
    let facts: Vec<(&str, String, bool)> = names
        .iter()
        .zip(run.refusals.values())
        .map(|(name, text)| (name.as_str(), text.clone(), true))
        .collect();
    if facts.is_empty() {
        return String::new();
    }
    shapes::facts(&facts)
}

fn tier_row(position: usize, tier: &TierResult) -> Vec<Cell> {
    let name = Cell::Named(tier.tier.clone(), slot_of_tier(&tier.tier, position));
    summary_row(name, tier.achieved_rate, &tier.latency.corrected.summary)
}

fn summary_row(name: Cell, rate: f64, s: &LatencySummary) -> Vec<Cell> {
    let ms = |v: f64| {
        if s.count == 0 {
            "–".to_owned()
        } else {
            number::short(v)
        }
    };
    vec![
        name,
        Cell::Number(number::short(rate)),
        Cell::Detail(ms(s.mean_ms)),
        Cell::Number(ms(s.p50_ms)),
        Cell::Detail(ms(s.p90_ms)),
        Cell::Number(ms(s.p95_ms)),
        Cell::Number(ms(s.p99_ms)),
        Cell::Detail(ms(s.p999_ms)),
        Cell::Number(ms(s.max_ms)),
    ]
}

fn status_rows(position: usize, tier: &TierResult) -> Vec<Vec<Cell>> {
    let total: u64 = tier.statuses.iter().map(|s| s.count).sum();
    let row = |s: &StatusResult| {
        vec![
            Cell::Named(tier.tier.clone(), slot_of_tier(&tier.tier, position)),
            Cell::Text(figures::error_name(&s.status).to_owned()),
            Cell::Number(number::count(s.count)),
            Cell::Number(number::share(s.count as f64, total as f64)),
            Cell::Detail(number::short(s.latency.p50_ms)),
            Cell::Detail(number::short(s.latency.p99_ms)),
            Cell::Detail(number::short(s.latency.max_ms)),
        ]
    };
    tier.statuses.iter().map(row).collect()
}

fn costs(run: &RunResult) -> String {
    let g = &run.generator;
    let spread = |s: &LatencySummary| {
        if s.count == 0 {
            return "–".to_owned();
        }
        format!(
            "p50 {} · p99 {} · max {} ms",
            number::short(s.p50_ms),
            number::short(s.p99_ms),
            number::short(s.max_ms)
        )
    };
    let waited = number::share(g.connection_waits as f64, run.totals.scheduled as f64);
    let mut facts = vec![
        ("generator: its own lateness", spread(&g.lateness), false),
        (
            "generator: wait for a free connection",
            format!("{waited} of requests; {}", spread(&g.connection_wait)),
            false,
        ),
        (
            "generator: CPU",
            format!(
                "{} s; busiest thread {}",
                number::short(g.cpu_seconds),
                number::percent(g.busy_fraction_max)
            ),
            false,
        ),
    ];
    match &run.server {
        None => facts.push((
            "server",
            "not measured: neither its process (--server-pid) nor its metrics (--admin) were read"
                .to_owned(),
            false,
        )),
        Some(_) => facts.extend(gpu::server_facts(run)),
    }
    shapes::facts(&facts)
}

fn about(run: &RunResult) -> String {
    let c = &run.configuration;
    let tiers: Vec<String> = c
        .tiers
        .iter()
        .map(|t| format!("{} {}", t.name, number::percent(t.share)))
        .collect();
    let mut facts = vec![
        ("command", machine::command(&run.command), true),
        ("machine", machine::line(run), false),
        (
            "commit",
            run.commit.clone().unwrap_or_else(|| "unknown".to_owned()),
            true,
        ),
        ("started", machine::start(run), false),
        ("target", c.target.clone(), true),
        (
            "arrivals",
            format!("{}, seed {}", c.arrivals, c.seed),
            false,
        ),
        ("connections", connections(run), false),
        ("input", c.input.clone(), false),
        (
            "given up after",
            format!("{} ms", number::short(c.timeout_ms)),
            false,
        ),
        (
            "warm-up, not measured",
            number::duration(c.warmup_seconds),
            false,
        ),
    ];
    if let Some(server) = &run.server_command {
        facts.insert(1, ("server command", machine::command(server), true));
    }
    if !tiers.is_empty() {
        facts.push(("tiers", tiers.join(" · "), false));
    }
    if let Some(deadline) = c.deadline_ms {
        facts.push((
            "deadline sent",
            format!("{} ms", number::short(deadline)),
            false,
        ));
    }
    if let Some(think) = c.think_ms {
        facts.push(("think time", format!("{} ms", number::short(think)), false));
    }
    if c.hangup_share > 0.0 {
        facts.push(("early hang-ups", number::percent(c.hangup_share), false));
    }
    shapes::facts(&facts)
}

fn connections(run: &RunResult) -> String {
    let c = &run.configuration;
    let kept = if c.keep_alive {
        "kept alive"
    } else {
        "a new one for each request"
    };
    format!(
        "{} at most, {kept}; {}",
        number::count(u64::from(c.connections)),
        number::plural(u64::from(c.threads), "generator thread")
    )
}
