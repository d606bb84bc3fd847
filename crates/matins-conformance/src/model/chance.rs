//! Chance from a seed: the same seed draws the same steps on every machine.

/// The `SplitMix64` generator.
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 up to, not including, `n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.draw() % n as u64) as usize
    }

    pub(super) fn percent(&mut self, share: usize) -> bool {
        self.below(100) < share
    }

    pub(super) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Something in that share of cases.
    pub(super) fn maybe<T>(
        &mut self,
        share: usize,
        draw: impl FnOnce(&mut Self) -> T,
    ) -> Option<T> {
        self.percent(share).then(|| draw(self))
    }

    pub(super) fn some<T>(&mut self, most: usize, mut draw: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..=self.below(most)).map(|_| draw(self)).collect()
    }
}
