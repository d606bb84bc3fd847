//! Which days of which years an expression names.
//!
//! The answer for a day depends on nothing but the kind of its year: leap or not, and the
//! weekday of 1 January. There are 14 kinds, so the whole rule becomes a table of 14 × 12 month
//! masks, made once by the parser. Searching and counting then never look at a rule again.

use super::field::{YEAR_MAX, YEAR_MIN};
use jiff::civil::{Date, Weekday};

/// The day-of-month field. Bit `n` of a mask stands for day `n`.
#[derive(Debug, Clone, Default)]
pub(super) struct DayField {
    pub days: u32,
    /// Bit `n`: `L-n`, with bit 0 for `L`.
    pub from_last: u32,
    /// `LW`: the last Monday to Friday of the month.
    pub last_workday: bool,
    /// Bit `n`: `nW`, the Monday to Friday nearest to day `n` in the same month.
    pub near_workday: u32,
    pub starred: bool,
}

/// The weekday field. Bit `n` of a mask stands for weekday `n`, Sunday being 0.
#[derive(Debug, Clone, Default)]
pub(super) struct WeekdayField {
    pub weekdays: u32,
    /// Bit `n` of entry `k - 1`: `n#k`, the k-th such weekday of the month.
    pub nth: [u32; 5],
    /// Bit `n`: `nL`, the last such weekday of the month.
    pub last: u32,
    pub starred: bool,
    /// A leading `+`: both fields must match.
    pub and: bool,
}

/// Day masks by kind of year and month.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DayTable([[u32; 12]; 14]);

/// Years that the seventh field allows, as bits from [`YEAR_MIN`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct YearSet(pub [u64; 4]);

impl YearSet {
    pub(super) fn contains(&self, year: i16) -> bool {
        let (min, max) = (YEAR_MIN as i16, YEAR_MAX as i16);
        (min..=max).contains(&year) && {
            let index = (year - min) as usize;
            self.0[index / 64] >> (index % 64) & 1 == 1
        }
    }
}

/// Leap or not, and the weekday of 1 January, as an index into the table.
pub(super) fn year_kind(year: i16) -> usize {
    let Ok(first) = Date::new(year, 1, 1) else { return 0 };
    kind(first.in_leap_year(), first.weekday())
}

fn kind(leap: bool, first: Weekday) -> usize {
    usize::from(leap) * 7 + first.to_sunday_zero_offset() as usize
}

impl DayTable {
    pub(super) const EMPTY: Self = Self([[0; 12]; 14]);

    /// `months`: bit `n` for month `n`.
    pub(super) fn new(months: u32, day: &DayField, weekday: &WeekdayField) -> Self {
        let mut table = [[0; 12]; 14];
        // Months of the same length that begin on the same weekday are alike.
        let mut masks = [[None; 7]; 4];
        for (kind, year) in table.iter_mut().enumerate() {
            let mut first_weekday = kind as u32 % 7;
            for (index, mask) in year.iter_mut().enumerate() {
                let length = month_length(index, kind >= 7);
                if months >> (index + 1) & 1 == 1 {
                    let alike = &mut masks[length as usize - 28][first_weekday as usize];
                    *mask = *alike
                        .get_or_insert_with(|| month_mask(length, first_weekday, day, weekday));
                }
                first_weekday = (first_weekday + length) % 7;
            }
        }
        Self(table)
    }

    pub(super) fn mask(&self, kind: usize, month: i8) -> u32 {
        self.0[kind][month as usize - 1]
    }

    pub(super) fn days_in_year(&self, kind: usize) -> u64 {
        self.0[kind].iter().map(|mask| u64::from(mask.count_ones())).sum()
    }
}

const fn month_length(index: usize, leap: bool) -> u32 {
    match index {
        1 if leap => 29,
        1 => 28,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

fn month_mask(length: u32, first: u32, day: &DayField, weekday: &WeekdayField) -> u32 {
    let by_day = day_mask(length, first, day);
    let by_weekday = weekday_mask(length, first, weekday);
    if day.starred || weekday.starred || weekday.and {
        by_day & by_weekday
    } else {
        by_day | by_weekday
    }
}

/// The bits of a mask that are set, from the lowest.
fn bits(mask: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(mask), |rest| Some(rest & rest.wrapping_sub(1)))
        .take_while(|&rest| rest != 0)
        .map(u32::trailing_zeros)
}

/// Bits 1 to `length`.
const fn whole_month(length: u32) -> u32 {
    (u32::MAX >> (31 - length)) & !1
}

fn day_mask(length: u32, first: u32, field: &DayField) -> u32 {
    let is_weekend = |day: u32| matches!((first + day - 1) % 7, 0 | 6);
    let mut mask = field.days;
    for back in bits(field.from_last).take_while(|&back| back < length) {
        mask |= 1 << (length - back);
    }
    if field.last_workday
        && let Some(day) = (1..=length).rev().find(|&day| !is_weekend(day))
    {
        mask |= 1 << day;
    }
    for day in bits(field.near_workday).take_while(|&day| day <= length) {
        // Saturday leans back and Sunday forward, unless that would leave the month.
        let near = match (first + day - 1) % 7 {
            6 if day > 1 => day - 1,
            6 => day + 2,
            0 if day < length => day + 1,
            0 => day - 2,
            _ => day,
        };
        mask |= 1 << near;
    }
    mask & whole_month(length)
}

/// Times a mask of seven days: those days of every week.
const EVERY_WEEK: u64 = 1 | 1 << 7 | 1 << 14 | 1 << 21 | 1 << 28;

fn weekday_mask(length: u32, first: u32, field: &WeekdayField) -> u32 {
    // Bit `n`: day `n` of a week that begins on the weekday of the 1st, from 0.
    let week = |weekdays: u32| {
        let weekdays = u64::from(weekdays) & 0x7f;
        (weekdays >> first | weekdays << (7 - first)) & 0x7f
    };
    let mut mask = week(field.weekdays) * EVERY_WEEK;
    for (k, &weekdays) in field.nth.iter().enumerate() {
        mask |= week(weekdays) << (7 * k);
    }
    mask |= (week(field.last) * EVERY_WEEK) & (0x7f << (length - 7));
    (mask << 1) as u32 & whole_month(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workday_near_the_edge_stays_in_the_month() {
        let near = |length, first, day| {
            let field = DayField { near_workday: 1u32 << day, ..DayField::default() };
            day_mask(length, first, &field)
        };
        // 1st is a Saturday: Monday the 3rd.
        assert_eq!(near(31, 6, 1), 1 << 3);
        // 30th of a 30-day month is a Sunday (1st is a Saturday): Friday the 28th.
        assert_eq!(near(30, 6, 30), 1 << 28);
        // No 31st: no run.
        assert_eq!(near(30, 6, 31), 0);
    }

    #[test]
    fn months_have_their_days() {
        assert_eq!(whole_month(31).count_ones(), 31);
        assert_eq!(whole_month(28), (1 << 29) - 2);
    }
}
