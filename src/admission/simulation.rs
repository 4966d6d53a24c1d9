//! Admission in front of a model of the waiting room, on a virtual clock.
//!
//! The model is small and shares no code with the server: three queues served by strict priority, the paced launch
//! rule, a batch of up to 100 in 100 ms, waiting tickets judged again every 100 ms, Poisson arrivals. The expected
//! figures were made by a separate program, with other seeds.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Admission, Load, REJUDGE_EVERY, Rules, Verdict};
use crate::clock::Time;
use crate::tier::Tier;

const HOLD_MAX: f64 = 0.04;

/// The xorshift generator of Marsaglia, 64 bits.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Evenly from 0 to below 1.
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The gap to the next of `rate` Poisson arrivals per second.
    fn gap(&mut self, rate: f64) -> f64 {
        -(1.0 - self.next()).ln() / rate
    }
}

/// What a run is fed.
#[derive(Clone, Copy)]
struct Scenario {
    gpus: usize,
    /// Seconds that a batch takes, and the tickets in a full one.
    batch: f64,
    batch_max: usize,
    /// Of every request, in seconds.
    deadline: f64,
    /// For so long requests arrive.
    seconds: f64,
    /// Arrivals per second: before and after the change at `change`.
    rates: [f64; 2],
    change: f64,
    mix: [f64; Tier::COUNT],
    /// (time, GPUs lost then, with the batches that they run).
    loss: Option<(f64, usize)>,
}

impl Scenario {
    fn steady(gpus: usize, rate: f64, mix: [f64; Tier::COUNT]) -> Scenario {
        Scenario {
            gpus,
            batch: 0.1,
            batch_max: 100,
            deadline: 2.0,
            seconds: 20.0,
            rates: [rate, rate],
            change: 0.0,
            mix,
            loss: None,
        }
    }
}

/// What became of the requests of one tier.
#[derive(Default)]
struct Outcome {
    offered: usize,
    latencies_ms: Vec<f64>,
    shed_at_the_door: usize,
    shed_waiting: usize,
    late: usize,
}

impl Outcome {
    fn ok_share(&self) -> f64 {
        self.latencies_ms.len() as f64 / self.offered.max(1) as f64
    }

    fn late_share(&self) -> f64 {
        self.late as f64 / self.offered.max(1) as f64
    }

    fn percentile(&self, part: f64) -> f64 {
        let mut sorted = self.latencies_ms.clone();
        sorted.sort_by(f64::total_cmp);
        let at = (sorted.len() as f64 * part) as usize;
        sorted
            .get(at.min(sorted.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0.0)
    }
}

struct Running {
    ends: f64,
    batch: Vec<(Tier, f64)>,
}

struct Model {
    scenario: Scenario,
    admission: Admission,
    now: f64,
    queues: [VecDeque<f64>; Tier::COUNT],
    running: Vec<Running>,
    healthy: usize,
    /// The launch rule's arrival rate, decayed with a fifth of the batch time.
    arrivals: (f64, f64),
    outcomes: [Outcome; Tier::COUNT],
}

impl Model {
    fn new(scenario: Scenario) -> Model {
        Model {
            scenario,
            admission: Admission::new(Rules::default()),
            now: 0.0,
            queues: Default::default(),
            running: Vec::new(),
            healthy: scenario.gpus,
            arrivals: (0.0, 0.0),
            outcomes: Default::default(),
        }
    }

    fn run(scenario: Scenario, seed: u64) -> Model {
        let mut model = Model::new(scenario);
        let mut random = Random::new(seed);
        let mut next_arrival = random.gap(scenario.rates[0]);
        let mut next_look = REJUDGE_EVERY.as_secs_f64();
        let mut loss = scenario.loss;
        while next_arrival < scenario.seconds || model.waiting() > 0 || !model.running.is_empty() {
            let wake = model.launch();
            let arrival = if next_arrival < scenario.seconds {
                next_arrival
            } else {
                f64::INFINITY
            };
            let end = model
                .running
                .iter()
                .map(|run| run.ends)
                .fold(f64::INFINITY, f64::min);
            let lost_at = loss.map_or(f64::INFINITY, |(at, _)| at);
            model.now = arrival.min(end).min(wake).min(next_look).min(lost_at);
            if let Some((_, count)) = loss.take_if(|(at, _)| *at == model.now) {
                model.lose(count);
            } else if model.now == next_look {
                next_look += REJUDGE_EVERY.as_secs_f64();
                model.look_at_the_waiting();
            } else if model.now == end {
                model.finish();
            } else if model.now == arrival {
                let rate = scenario.rates[usize::from(model.now >= scenario.change)];
                next_arrival += random.gap(rate);
                model.arrive(pick(random.next(), scenario.mix));
            }
        }
        model
    }

    fn waiting(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    fn time(&self) -> Time {
        Time::from_millis_f64(self.now * 1e3)
    }

    fn load(&self) -> Load {
        Load {
            waiting: std::array::from_fn(|tier| self.queues[tier].len() as u32),
            idle_gpus: self.healthy - self.running.len(),
            capacity: self.healthy as f64 * self.scenario.batch_max as f64 / self.scenario.batch,
            batch_time: Duration::from_secs_f64(self.scenario.batch),
            healthy: self.healthy,
        }
    }

    fn arrive(&mut self, tier: Tier) {
        let outcome = &mut self.outcomes[tier.index()];
        outcome.offered += 1;
        let deadline = Duration::from_secs_f64(self.scenario.deadline);
        match self
            .admission
            .judge(self.time(), tier, deadline, &self.load())
        {
            Verdict::Admit => {
                self.queues[tier.index()].push_back(self.now);
                let tau = self.scenario.batch / 5.0;
                let (rate, at) = self.arrivals;
                self.arrivals = (rate * ((at - self.now) / tau).exp() + 1.0 / tau, self.now);
            }
            _ => self.outcomes[tier.index()].shed_at_the_door += 1,
        }
    }

    /// Launches what the rule lets launch; returns when to look again.
    fn launch(&mut self) -> f64 {
        while self.running.len() < self.healthy && self.waiting() > 0 {
            let fronts = self.queues.iter().filter_map(VecDeque::front);
            let oldest = fronts.copied().fold(f64::INFINITY, f64::min);
            let launches = self.waiting() >= self.scenario.batch_max
                || self.healthy == 1
                || self.now - oldest >= HOLD_MAX - 1e-9
                || self.waiting() as f64 >= self.rate_before_the_newest() * self.spacing();
            if !launches {
                return (oldest + HOLD_MAX).min(self.now + 0.001);
            }
            self.launch_batch();
        }
        f64::INFINITY
    }

    fn rate_before_the_newest(&self) -> f64 {
        let tau = self.scenario.batch / 5.0;
        let (rate, at) = self.arrivals;
        (rate - 1.0 / tau).max(0.0) * ((at - self.now) / tau).exp()
    }

    fn spacing(&self) -> f64 {
        let idle = self.healthy - self.running.len();
        let mut remaining: Vec<f64> = self
            .running
            .iter()
            .map(|run| (run.ends - self.now).max(0.0))
            .collect();
        remaining.sort_by(f64::total_cmp);
        remaining.push(self.scenario.batch);
        let gaps = remaining
            .iter()
            .enumerate()
            .map(|(k, left)| left / (idle + k) as f64);
        gaps.fold(0.0, f64::max)
    }

    fn launch_batch(&mut self) {
        let mut batch = Vec::with_capacity(self.scenario.batch_max);
        for tier in Tier::ALL {
            while batch.len() < self.scenario.batch_max {
                let Some(arrived) = self.queues[tier.index()].pop_front() else {
                    break;
                };
                if self.now - arrived >= self.scenario.deadline {
                    self.outcomes[tier.index()].late += 1;
                } else {
                    batch.push((tier, arrived));
                }
            }
        }
        if !batch.is_empty() {
            self.running.push(Running {
                ends: self.now + self.scenario.batch,
                batch,
            });
        }
    }

    fn finish(&mut self) {
        let now = self.now;
        let ended: Vec<Running> = self.running.extract_if(.., |run| run.ends <= now).collect();
        for (tier, arrived) in ended.into_iter().flat_map(|run| run.batch) {
            let outcome = &mut self.outcomes[tier.index()];
            if now - arrived > self.scenario.deadline {
                outcome.late += 1;
            } else {
                outcome.latencies_ms.push((now - arrived) * 1e3);
            }
        }
    }

    /// `count` GPUs are lost; the tickets that they ran come back to the front of their queues.
    fn lose(&mut self, count: usize) {
        self.healthy -= count;
        for _ in 0..count.min(self.running.len()) {
            let lost = self.running.swap_remove(0);
            for (tier, arrived) in lost.batch.into_iter().rev() {
                self.queues[tier.index()].push_front(arrived);
            }
        }
    }

    fn look_at_the_waiting(&mut self) {
        let (load, now) = (self.load(), self.time());
        let mut above = 0;
        for tier in Tier::ALL {
            let sweep = self.admission.sweep(now, tier, &load);
            let mut kept = VecDeque::new();
            for arrived in std::mem::take(&mut self.queues[tier.index()]) {
                let remaining =
                    Duration::from_secs_f64((arrived + self.scenario.deadline - self.now).max(0.0));
                let position = above + kept.len() + 1;
                match sweep.and_then(|sweep| sweep.judge(position, remaining)) {
                    Some(_) => self.outcomes[tier.index()].shed_waiting += 1,
                    None => kept.push_back(arrived),
                }
            }
            above += kept.len();
            self.queues[tier.index()] = kept;
        }
    }

    fn served_of_capacity(&self) -> f64 {
        let served: usize = self
            .outcomes
            .iter()
            .map(|tier| tier.latencies_ms.len())
            .sum();
        served as f64
            / (self.healthy as f64 * self.scenario.batch_max as f64 / self.scenario.batch
                * self.scenario.seconds)
    }

    fn outcome(&self, tier: Tier) -> &Outcome {
        &self.outcomes[tier.index()]
    }

    fn report(&self) -> String {
        let tiers = Tier::ALL.into_iter().map(|tier| {
            let outcome = self.outcome(tier);
            format!(
                "\n   {:<10} offered {:>6} ok {:.3} refused {:>6} shed waiting {:>4} late {} p50 {:.0} p95 {:.0} p99 {:.0}",
                tier.name(),
                outcome.offered,
                outcome.ok_share(),
                outcome.shed_at_the_door,
                outcome.shed_waiting,
                outcome.late,
                outcome.percentile(0.5),
                outcome.percentile(0.95),
                outcome.percentile(0.99),
            )
        });
        format!(
            "served {:.3} of capacity{}",
            self.served_of_capacity(),
            tiers.collect::<String>()
        )
    }

    /// Nobody lost, nobody dead in the queue.
    fn check(&self) {
        for outcome in &self.outcomes {
            let answered = outcome.latencies_ms.len()
                + outcome.shed_at_the_door
                + outcome.shed_waiting
                + outcome.late;
            assert_eq!(answered, outcome.offered, "every request is answered once");
            assert!(outcome.late_share() <= 0.0005, "504s: {}", self.report());
        }
    }
}

fn pick(dice: f64, mix: [f64; Tier::COUNT]) -> Tier {
    if dice < mix[0] {
        Tier::Enterprise
    } else if dice < mix[0] + mix[1] {
        Tier::Paid
    } else {
        Tier::Free
    }
}

/// Gpus, rate, mix, and for each tier the share answered and the p95 of the answered in milliseconds.
type Row = (usize, f64, [f64; 3], [(f64, f64); 3]);

const NOBODY: (f64, f64) = (f64::NAN, f64::NAN);

const REFERENCE: [Row; 8] = [
    (
        4,
        8_000.0,
        [0.1, 0.3, 0.6],
        [(1.0, 158.0), (1.0, 159.0), (0.172, 589.0)],
    ),
    (
        4,
        40_000.0,
        [0.0, 0.0, 1.0],
        [NOBODY, NOBODY, (0.102, 399.0)],
    ),
    (
        4,
        6_000.0,
        [0.3, 0.5, 0.2],
        [(1.0, 147.0), (0.746, 395.0), (0.002, 115.0)],
    ),
    (
        1,
        2_000.0,
        [0.1, 0.3, 0.6],
        [(1.0, 195.0), (1.0, 195.0), (0.160, 600.0)],
    ),
    (
        1,
        1_300.0,
        [0.1, 0.3, 0.6],
        [(1.0, 195.0), (1.0, 195.0), (0.621, 372.0)],
    ),
    (
        4,
        12_000.0,
        [0.1, 0.3, 0.6],
        [(1.0, 170.0), (0.790, 387.0), (0.001, 108.0)],
    ),
    (
        4,
        5_000.0,
        [0.3, 0.3, 0.4],
        [(1.0, 141.0), (1.0, 143.0), (0.501, 448.0)],
    ),
    (
        4,
        8_000.0,
        [1.0, 0.0, 0.0],
        [(0.506, 399.0), NOBODY, NOBODY],
    ),
];

#[test]
fn overload_comes_out_as_in_the_reference_or_better() {
    for (seed, (gpus, rate, mix, expected)) in (1..).zip(REFERENCE) {
        let model = Model::run(Scenario::steady(gpus, rate, mix), seed);
        println!("{gpus} GPUs, {rate}/s, {mix:?}: {}", model.report());
        model.check();
        assert!(model.served_of_capacity() >= 0.98, "{}", model.report());
        for (tier, (ok, p95)) in Tier::ALL
            .into_iter()
            .zip(expected)
            .filter(|(_, row)| row.0.is_finite())
        {
            let outcome = model.outcome(tier);
            assert!(
                (outcome.ok_share() - ok).abs() <= 0.02,
                "{tier}: {}",
                model.report()
            );
            assert!(
                outcome.percentile(0.95) <= p95 * 1.15,
                "{tier}: {}",
                model.report()
            );
        }
    }
}

#[test]
fn at_twice_the_capacity_those_who_pay_notice_nothing() {
    for seed in 11..14 {
        let model = Model::run(Scenario::steady(4, 8_000.0, [0.1, 0.3, 0.6]), seed);
        println!("{}", model.report());
        model.check();
        let [enterprise, paid, free] = Tier::ALL.map(|tier| model.outcome(tier));
        assert!(enterprise.ok_share() >= 0.999 && paid.ok_share() >= 0.999);
        assert!(enterprise.percentile(0.95) <= 190.0 && paid.percentile(0.95) <= 200.0);
        // Tighter than the slow rate estimate alone gives (p95 up to 590 ms, p99 over 900 ms).
        assert!(
            free.percentile(0.95) <= 500.0 && free.percentile(0.99) <= 750.0,
            "{}",
            model.report()
        );
    }
}

#[test]
fn a_step_from_a_fifth_to_twice_the_capacity_lets_nobody_in_to_die() {
    for seed in 21..26 {
        let mut scenario = Scenario::steady(4, 8_000.0, [0.1, 0.3, 0.6]);
        (scenario.rates[0], scenario.change) = (800.0, 5.0);
        let model = Model::run(scenario, seed);
        println!("{}", model.report());
        model.check();
        assert!(
            model.outcomes.iter().all(|outcome| outcome.late == 0),
            "{}",
            model.report()
        );
        assert!(model.outcome(Tier::Paid).ok_share() >= 0.999);
    }
}

#[test]
fn ten_times_the_capacity_of_free_requests_stays_within_the_target() {
    let model = Model::run(Scenario::steady(4, 40_000.0, [0.0, 0.0, 1.0]), 31);
    model.check();
    assert!(model.served_of_capacity() >= 0.98);
    assert!(model.outcome(Tier::Free).percentile(0.95) <= 450.0);
}

#[test]
fn half_of_the_gpus_lost_under_load_kills_nobody_in_the_queue() {
    let cases = [
        (2_800.0, [0.1, 0.3, 0.6]),
        (8_000.0, [0.1, 0.3, 0.6]),
        (8_000.0, [0.0, 0.0, 1.0]),
        (40_000.0, [0.0, 0.0, 1.0]),
        (4_500.0, [0.3, 0.6, 0.1]),
    ];
    for (seed, (rate, mix)) in (41..).zip(cases) {
        let mut scenario = Scenario::steady(4, rate, mix);
        scenario.loss = Some((10.0, 2));
        let model = Model::run(scenario, seed);
        println!("{rate}/s, {mix:?}, 2 of 4 lost: {}", model.report());
        model.check();
        // Of the half that is left it is 1.5 on average: the other half served for half of the time.
        assert!(
            model.served_of_capacity() >= 0.98 * 1.5_f64.min(rate / 4_000.0 + 0.45),
            "{}",
            model.report()
        );
    }
}

/// The share refused in a run that is fed `load` of what its batches can carry.
fn refused_below_capacity(batch: f64, batch_max: usize, gpus: usize, load: f64) -> f64 {
    let mut scenario = Scenario::steady(gpus, 0.0, [0.1, 0.3, 0.6]);
    (scenario.batch, scenario.batch_max) = (batch, batch_max);
    scenario.rates = [load * (gpus * batch_max) as f64 / batch; 2];
    scenario.deadline = (20.0 * batch).max(2.0);
    scenario.seconds = (400.0 * batch).max(2.0);
    let model = Model::run(scenario, 51);
    model.check();
    let outcomes = model.outcomes.iter();
    let refused: usize = outcomes
        .map(|tier| tier.shed_at_the_door + tier.shed_waiting)
        .sum();
    let offered: usize = model.outcomes.iter().map(|tier| tier.offered).sum();
    println!("{gpus} GPUs, {batch_max} in {batch} s, load {load}: {refused} of {offered} refused");
    refused as f64 / offered.max(1) as f64
}

#[test]
fn below_capacity_nobody_is_refused_however_long_a_batch_takes() {
    for gpus in [1, 4] {
        for batch in [0.001, 0.03, 0.1, 0.4, 2.0] {
            for load in [0.05, 0.5, 0.8] {
                assert_eq!(refused_below_capacity(batch, 100, gpus, load), 0.0);
            }
        }
    }
}

#[test]
fn batches_of_one_refuse_only_the_bunched_up() {
    // Single tickets do bunch up: at 60 % load a queue of two or more batch times is common, and free requests then
    // give way.
    for batch in [0.1, 2.0] {
        assert!(refused_below_capacity(batch, 1, 1, 0.1) < 0.02);
        assert!(refused_below_capacity(batch, 1, 4, 0.6) < 0.1);
    }
}
