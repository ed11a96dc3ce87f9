//! Packed rows against packed rows, code by code.

use super::compare::Comparison;
use dsc_ir::dtype::RowFormat;
use dsc_ir::format::unpack_row;

/// Channels of an [`RowFormat::Fp8Rope`] row that are codes; all of them elsewhere.
fn coded(format: RowFormat, channels: u64) -> usize {
    match format {
        RowFormat::F32 | RowFormat::Bf16 => 0,
        RowFormat::Fp8Rope { rope } => channels.saturating_sub(rope.into()) as usize,
        RowFormat::Fp8 | RowFormat::MxFp4 | RowFormat::Fp4 => channels as usize,
    }
}

/// Compares rows before a launch, expected, and got.
pub(super) fn compare(c: &mut Comparison, rows: [&[u8]; 3], format: RowFormat, channels: u64) {
    let [before, expected, got] = rows;
    if channels == 0 || channels > expected.len() as u64 * 2 {
        return c.lose(|| format!("no rows of {channels} channels"));
    }
    let bytes = format.row_bytes(channels) as usize;
    let rows = before.chunks(bytes).zip(expected.chunks(bytes)).zip(got.chunks(bytes)).enumerate();
    for (r, ((before, want), have)) in rows {
        if want == have && want == before {
            continue;
        }
        c.elements += channels;
        if want == have {
            continue;
        }
        if want.len() != bytes || have.len() != bytes {
            return c.lose(|| format!("[{r}] is no whole row"));
        }
        Row { r, format, channels: channels as usize, want, have }.compare(c);
    }
}

struct Row<'a> {
    r: usize,
    format: RowFormat,
    channels: usize,
    want: &'a [u8],
    have: &'a [u8],
}

impl Row<'_> {
    fn compare(&self, c: &mut Comparison) {
        let (coded, group) = (coded(self.format, self.channels as u64), self.format.group().max(1) as usize);
        let data = self.format.data_bytes(self.channels as u64) as usize;
        for (g, start) in (0..coded).step_by(group).enumerate() {
            let end = (start + group).min(coded);
            let (want, have) = (self.want[data + g], self.have[data + g]);
            if want == have { self.codes(c, start..end) } else { self.rescaled(c, start..end, want, have) }
        }
        self.halves(c, coded);
        // Padding of the scales.
        let rest = data + coded.div_ceil(group);
        if self.want[rest..] != self.have[rest..] {
            c.lose(|| format!("[{}] has another padding", self.r));
        }
    }

    /// Codes of a group whose scales are equal.
    fn codes(&self, c: &mut Comparison, range: std::ops::Range<usize>) {
        for i in range {
            let (want, have) = (self.code(self.want, i), self.code(self.have, i));
            if want == have {
                continue;
            }
            c.different += 1;
            let words = || format!("[{}, {i}] is code {have:#04x}, not {want:#04x}", self.r);
            let distance = self.ordinal(want) - self.ordinal(have);
            if distance.abs() <= 1 { c.miss(words) } else { c.lose(words) }
        }
    }

    /// A group whose largest value lies at a boundary of the scale: one value that rounds the other way.
    fn rescaled(&self, c: &mut Comparison, range: std::ops::Range<usize>, want: u8, have: u8) {
        c.different += range.len() as u64;
        let words = || format!("[{}, {}..] has scale {have:#04x}, not {want:#04x}", self.r, range.start);
        let floats = |row: &[u8]| {
            let mut out = vec![0.0; self.channels];
            unpack_row(self.format, row, &mut out).map(|()| out)
        };
        let near = match (floats(self.want), floats(self.have)) {
            (Ok(a), Ok(b)) => {
                let largest = range.clone().map(|i| a[i].abs().max(b[i].abs())).fold(0.0, f32::max);
                // A step of either format at the coarser of two neighbouring scales.
                range.clone().all(|i| (a[i] - b[i]).abs() <= a[i].abs().max(b[i].abs()) / 2.0 + largest / 8.0)
            }
            _ => false,
        };
        if want.abs_diff(have) == 1 && near { c.miss(words) } else { c.lose(words) }
    }

    /// Channels that stay bf16: equal or next to each other.
    fn halves(&self, c: &mut Comparison, coded: usize) {
        if !matches!(self.format, RowFormat::Fp8Rope { .. }) {
            return;
        }
        for i in coded..self.channels {
            let at = coded + 2 * (i - coded);
            let bits = |row: &[u8]| i32::from(u16::from_le_bytes([row[at], row[at + 1]]));
            let (want, have) = (bits(self.want), bits(self.have));
            if want != have {
                c.different += 1;
                if (ordinal(want, 0x8000) - ordinal(have, 0x8000)).abs() > 1 {
                    c.lose(|| format!("[{}, {i}] is bf16 {have:#06x}, not {want:#06x}", self.r));
                }
            }
        }
    }

    fn code(&self, row: &[u8], i: usize) -> u8 {
        match self.format {
            RowFormat::MxFp4 | RowFormat::Fp4 => (row[i / 2] >> (4 * (i % 2))) & 15,
            _ => row[i],
        }
    }

    fn ordinal(&self, code: u8) -> i32 {
        let sign = if matches!(self.format, RowFormat::MxFp4 | RowFormat::Fp4) { 8 } else { 0x80 };
        ordinal(code.into(), sign)
    }
}

/// Place of a sign-and-magnitude code among all values.
fn ordinal(code: i32, sign: i32) -> i32 {
    if code & sign != 0 { -(code & (sign - 1)) } else { code }
}

#[cfg(test)]
mod tests {
    use super::super::case::{Element, Rule};
    use super::super::compare::{Comparison, compare};
    use dsc_ir::dtype::{DType, RowFormat};
    use dsc_ir::format::pack_row;

    const CHANNELS: usize = 128;

    fn packed(format: RowFormat, x: &[f32]) -> Vec<u8> {
        let mut out = vec![0; format.row_bytes(x.len() as u64) as usize];
        pack_row(format, x, &mut out).unwrap();
        out
    }

    fn compared(format: RowFormat, before: &[u8], want: &[u8], have: &[u8]) -> Comparison {
        let rule = Rule::Codes { dtype: DType::Packed(format), channels: CHANNELS as u64, outside: 1e-5 };
        compare(before, want, have, Element::U8, rule)
    }

    #[test]
    fn one_neighbour_is_counted() {
        let rope = RowFormat::Fp8Rope { rope: 64 };
        for format in [RowFormat::Fp8, RowFormat::MxFp4, RowFormat::Fp4, rope] {
            let x: Vec<f32> = (0..CHANNELS).map(|i| 1.0 + i as f32 / 64.0).collect();
            let want = packed(format, &x);
            let poison = vec![0xFF; want.len()];
            let c = compared(format, &poison, &want, &want);
            assert_eq!((c.holds, c.elements, c.outside), (true, CHANNELS as u64, 0));
            let mut have = want.clone();
            have[0] ^= 1;
            let c = compared(format, &poison, &want, &have);
            assert_eq!((c.holds, c.outside), (true, 1), "{format} {:?}", c.first);
            have[1] ^= 1;
            assert!(!compared(format, &poison, &want, &have).holds, "two of {CHANNELS}");
            let mut have = want.clone();
            have[0] ^= 4;
            assert!(!compared(format, &poison, &want, &have).holds, "{format}: no neighbour");
        }
    }

    #[test]
    fn a_scale_that_rounds_the_other_way_is_one_value() {
        let mut x: Vec<f32> = (0..CHANNELS).map(|i| i as f32 - 60.0).collect();
        x[3] = 448.0;
        let want = packed(RowFormat::Fp8, &x);
        x[3] = 448.001;
        let have = packed(RowFormat::Fp8, &x);
        assert_ne!(want, have);
        let c = compared(RowFormat::Fp8, &[0; 132], &want, &have);
        assert_eq!((c.holds, c.outside), (true, 1), "{:?}", c.first);
        x[3] = 900.0;
        assert!(!compared(RowFormat::Fp8, &[0; 132], &want, &packed(RowFormat::Fp8, &x)).holds);
    }

    #[test]
    fn untouched_rows_do_not_count() {
        let row = packed(RowFormat::Fp8, &[1.0; CHANNELS]);
        let c = compared(RowFormat::Fp8, &row, &row, &row);
        assert_eq!((c.holds, c.elements), (true, 0));
        assert!(!compared(RowFormat::Fp8, &row, &row, &[0; 132]).holds);
    }
}
