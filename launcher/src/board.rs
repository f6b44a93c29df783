//! [`Board`]: the cards that ranks have published, and who waits for which.

use std::collections::BTreeSet;

/// Cards by rank. A lookup of a card that is not there yet is remembered and answered when it comes.
pub(crate) struct Board {
    cards: Vec<Option<Vec<u8>>>,
    waiting: Vec<BTreeSet<u32>>,
}

impl Board {
    pub(crate) fn new(ranks: usize) -> Board {
        Board { cards: vec![None; ranks], waiting: vec![BTreeSet::new(); ranks] }
    }

    /// Rank `asker` wants the card of `rank`. Gives it if it is there; the outer `None` means that there is no
    /// such rank.
    pub(crate) fn look_up(&mut self, asker: u32, rank: u32) -> Option<Option<&[u8]>> {
        let at = rank as usize;
        let card = self.cards.get(at)?;
        if card.is_none() {
            self.waiting[at].insert(asker);
        }
        Some(card.as_deref())
    }

    /// `rank` publishes its card; gives the ranks that wait for it. The first card counts.
    pub(crate) fn publish(&mut self, rank: u32, card: Vec<u8>) -> BTreeSet<u32> {
        self.cards[rank as usize].get_or_insert(card);
        std::mem::take(&mut self.waiting[rank as usize])
    }

    /// The card of `rank`, which must have published.
    pub(crate) fn card(&self, rank: u32) -> Option<&[u8]> {
        self.cards[rank as usize].as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_wait_for_the_card() {
        let mut board = Board::new(3);
        assert_eq!(board.look_up(0, 2), Some(None));
        assert_eq!(board.look_up(1, 2), Some(None));
        assert_eq!(board.look_up(1, 2), Some(None));
        assert_eq!(board.look_up(1, 3), None);
        assert_eq!(board.publish(2, vec![7]), [0, 1].into());
        assert_eq!(board.look_up(0, 2), Some(Some(&[7][..])));
        assert!(board.publish(2, vec![8]).is_empty());
        assert_eq!(board.card(2), Some(&[7][..]));
    }
}
