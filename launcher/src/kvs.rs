//! [`Kvs`]: the key-value space of the job (as in PMI): the business cards of the ranks, by rank.

use std::collections::BTreeSet;

/// The business cards that ranks have published. A lookup of one that is not published yet is kept, and answered when it is.
pub(crate) struct Kvs {
    /// By rank; `None` until it is published.
    business_cards: Vec<Option<Vec<u8>>>,
    /// For each rank the ranks that wait for its business card.
    waiting: Vec<BTreeSet<u32>>,
}

impl Kvs {
    pub(crate) fn new(ranks: usize) -> Kvs {
        Kvs { business_cards: vec![None; ranks], waiting: vec![BTreeSet::new(); ranks] }
    }

    /// Looks up the business card of `rank` for rank `asker`. Gives it if it is published; the outer `None` means that there
    /// is no such rank.
    pub(crate) fn look_up(&mut self, asker: u32, rank: u32) -> Option<Option<&[u8]>> {
        let at = rank as usize;
        let business_card = self.business_cards.get(at)?;
        if business_card.is_none() {
            self.waiting[at].insert(asker);
        }
        Some(business_card.as_deref())
    }

    /// `rank` publishes its business card; gives the ranks that wait for it. A second business card of a rank is ignored.
    pub(crate) fn publish(&mut self, rank: u32, business_card: Vec<u8>) -> BTreeSet<u32> {
        self.business_cards[rank as usize].get_or_insert(business_card);
        std::mem::take(&mut self.waiting[rank as usize])
    }

    /// The business card of `rank`; `None` if it has not published.
    pub(crate) fn business_card(&self, rank: u32) -> Option<&[u8]> {
        self.business_cards[rank as usize].as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_wait_for_the_business_card() {
        let mut kvs = Kvs::new(3);
        assert_eq!(kvs.look_up(0, 2), Some(None));
        assert_eq!(kvs.look_up(1, 2), Some(None));
        assert_eq!(kvs.look_up(1, 2), Some(None));
        assert_eq!(kvs.look_up(1, 3), None);
        assert_eq!(kvs.publish(2, vec![7]), [0, 1].into());
        assert_eq!(kvs.look_up(0, 2), Some(Some(&[7][..])));
        assert!(kvs.publish(2, vec![8]).is_empty());
        assert_eq!(kvs.business_card(2), Some(&[7][..]));
    }
}
