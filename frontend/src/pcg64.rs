//! The random stream of NumPy's `default_rng(seed).integers(0, high, size)`, which Engram's hash
//! multipliers are defined by.
//!
//! `SeedSequence` spreads the seed (M. O'Neill, "C++ Seeding Surprises", 2015), PCG64 (XSL-RR) generates
//! 64-bit words, and Lemire's method ("Fast Random Integer Generation in an Interval", 2019) bounds them.

const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

/// The generator.
#[derive(Debug, Clone)]
pub struct Pcg64 {
    state: u128,
    increment: u128,
    /// Upper half of a word of which the lower half was taken.
    half: Option<u32>,
}

impl Pcg64 {
    /// `default_rng(seed)`.
    pub fn new(seed: u64) -> Pcg64 {
        let words = seed_words(seed);
        let wide = |high: u64, low: u64| (u128::from(high) << 64) | u128::from(low);
        let increment = (wide(words[2], words[3]) << 1) | 1;
        let mut rng = Pcg64 { state: 0, increment, half: None };
        rng.step();
        rng.state = rng.state.wrapping_add(wide(words[0], words[1]));
        rng.step();
        rng
    }

    /// `integers(0, high, n)` of 64-bit integers; `high` is at least 1.
    pub fn integers(&mut self, high: u64, n: usize) -> Vec<u64> {
        let range = high.saturating_sub(1);
        (0..n).map(|_| self.bounded(range)).collect()
    }

    /// A number from 0 to `range`, both included.
    fn bounded(&mut self, range: u64) -> u64 {
        if range == 0 {
            return 0;
        }
        match u32::try_from(range) {
            Ok(u32::MAX) => u64::from(self.next_u32()),
            Ok(range) => u64::from(self.bounded_u32(range)),
            Err(_) if range == u64::MAX => self.next_u64(),
            Err(_) => self.bounded_u64(range),
        }
    }

    fn bounded_u32(&mut self, range: u32) -> u32 {
        let n = u64::from(range) + 1;
        let threshold = (u64::from(u32::MAX - range) % n) as u32;
        loop {
            let product = u64::from(self.next_u32()) * n;
            if product as u32 >= threshold {
                return (product >> 32) as u32;
            }
        }
    }

    fn bounded_u64(&mut self, range: u64) -> u64 {
        let n = u128::from(range) + 1;
        let threshold = (u128::from(u64::MAX - range) % n) as u64;
        loop {
            let product = u128::from(self.next_u64()) * n;
            if product as u64 >= threshold {
                return (product >> 64) as u64;
            }
        }
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    fn next_u64(&mut self) -> u64 {
        self.step();
        let rotation = (self.state >> 122) as u32;
        (((self.state >> 64) as u64) ^ (self.state as u64)).rotate_right(rotation)
    }

    fn next_u32(&mut self) -> u32 {
        if let Some(half) = self.half.take() {
            return half;
        }
        let word = self.next_u64();
        self.half = Some((word >> 32) as u32);
        word as u32
    }
}

const POOL: usize = 4;

/// `SeedSequence(seed).generate_state(4, uint64)`.
fn seed_words(seed: u64) -> [u64; 4] {
    let pool = entropy_pool(seed);
    let mut hash = 0x8B51_F9DD_u32;
    let mut halves = [0_u32; 8];
    for (at, half) in halves.iter_mut().enumerate() {
        let mut word = pool[at % POOL] ^ hash;
        hash = hash.wrapping_mul(0x58F3_8DED);
        word = word.wrapping_mul(hash);
        *half = word ^ (word >> 16);
    }
    std::array::from_fn(|at| u64::from(halves[2 * at]) | (u64::from(halves[2 * at + 1]) << 32))
}

fn entropy_pool(seed: u64) -> [u32; POOL] {
    let entropy = [seed as u32, (seed >> 32) as u32, 0, 0];
    let mut constant = 0x43B0_D7E5_u32;
    let mut hash = |value: u32| {
        let mut value = value ^ constant;
        constant = constant.wrapping_mul(0x931E_8875);
        value = value.wrapping_mul(constant);
        value ^ (value >> 16)
    };
    let mut pool = entropy.map(&mut hash);
    for from in 0..POOL {
        for to in 0..POOL {
            if from != to {
                let mixed = pool[to].wrapping_mul(0xCA01_F9DD).wrapping_sub(hash(pool[from]).wrapping_mul(0x4973_F715));
                pool[to] = mixed ^ (mixed >> 16);
            }
        }
    }
    pool
}

#[cfg(test)]
mod tests {
    use super::Pcg64;

    /// Values of NumPy 2.4: `default_rng(seed).integers(0, high, size=n)`.
    #[test]
    fn equals_numpy() {
        let high = ((i64::MAX as u64) / 99092) / 2;
        assert_eq!(
            Pcg64::new(10007).integers(high, 4),
            [38316048023122, 2419938046656, 17979836159674, 36993668729195]
        );
        assert_eq!(Pcg64::new(0).integers(1000, 5), [850, 636, 511, 269, 307]);
        assert_eq!(Pcg64::new(12345).integers(4294967296, 3), [3003105693, 976400781, 3387213022]);
        assert_eq!(Pcg64::new(7).integers(4294967291, 4), [4058335878, 2684764581, 2938530449, 3853503927]);
        assert_eq!(
            Pcg64::new(1099511627779).integers(4611686018427387903, 3),
            [3567858950595158474, 4592581556621908175, 2182152584693574433]
        );
        assert_eq!(Pcg64::new(3).integers(1, 3), [0, 0, 0]);
    }
}
