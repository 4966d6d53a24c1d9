//! A seeded generator of random numbers: the Mersenne Twister (MT19937), seeded and read as Python's `random.Random` does,
//! so that a load described by a seed there is the same load here.
//!
//! After M. Matsumoto and T. Nishimura, "Mersenne Twister: a 623-dimensionally equidistributed uniform pseudorandom number
//! generator" (1998), with their initialisation by array of 2002.

const SIZE: usize = 624;
const SHIFT: usize = 397;

/// The generator.
pub struct Random {
    state: [u32; SIZE],
    next: usize,
}

impl Random {
    /// `random.Random(seed)`.
    pub fn new(seed: u32) -> Random {
        let mut random = Random {
            state: initialised(19_650_218),
            next: SIZE,
        };
        random.mix_in(seed);
        random
    }

    /// Initialisation by an array of one number.
    fn mix_in(&mut self, seed: u32) {
        let state = &mut self.state;
        let scrambled = |state: &[u32; SIZE], i: usize| state[i - 1] ^ (state[i - 1] >> 30);
        let mut i = 1;
        let step = |state: &mut [u32; SIZE], i: &mut usize| {
            *i += 1;
            if *i == SIZE {
                state[0] = state[SIZE - 1];
                *i = 1;
            }
        };
        for _ in 0..SIZE {
            state[i] = (state[i] ^ scrambled(state, i).wrapping_mul(1_664_525)).wrapping_add(seed);
            step(state, &mut i);
        }
        for _ in 1..SIZE {
            let mixed = state[i] ^ scrambled(state, i).wrapping_mul(1_566_083_941);
            state[i] = mixed.wrapping_sub(i as u32);
            step(state, &mut i);
        }
        state[0] = 0x8000_0000;
    }

    fn twist(&mut self) {
        for i in 0..SIZE {
            let joined = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % SIZE] & 0x7fff_ffff);
            let odd = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + SHIFT) % SIZE] ^ (joined >> 1) ^ odd;
        }
        self.next = 0;
    }

    fn word(&mut self) -> u32 {
        if self.next == SIZE {
            self.twist();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// `random()`: uniform in [0, 1), with 53 bits.
    pub fn unit(&mut self) -> f64 {
        let high = f64::from(self.word() >> 5);
        let low = f64::from(self.word() >> 6);
        (high * 67_108_864.0 + low) / 9_007_199_254_740_992.0
    }

    /// `expovariate(rate)`: exponentially distributed with mean 1 / `rate`.
    pub fn exponential(&mut self, rate: f64) -> f64 {
        -(1.0 - self.unit()).ln() / rate
    }

    /// Uniform in `low..high`.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Uniform in `0..below`.
    pub fn below(&mut self, below: usize) -> usize {
        (self.unit() * below as f64) as usize
    }

    /// Uniform in `low..=high`.
    pub fn count(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// True with probability `chance`.
    pub fn chance(&mut self, chance: f64) -> bool {
        self.unit() < chance
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

fn initialised(seed: u32) -> [u32; SIZE] {
    let mut state = [seed; SIZE];
    for i in 1..SIZE {
        let before = state[i - 1];
        state[i] = (before ^ (before >> 30))
            .wrapping_mul(1_812_433_253)
            .wrapping_add(i as u32);
    }
    state
}

#[test]
fn the_numbers_are_those_of_python() {
    let mut random = Random::new(1);
    assert_eq!(random.unit(), 0.134_364_244_112_401_22);
    assert_eq!(random.unit(), 0.847_433_736_937_232_7);
    assert!((random.exponential(1.0) - 1.442_968_925_346_662_9).abs() < 1e-12);
}
