//! What may be said to the network of emulated hosts: `cut h1 h2`, `delay 0.1ms`, `loss 5% h3`, `clear`.

use anyhow::{Context, Result, bail};

/// A change of the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Order {
    /// For the links that are named.
    Links(Which, Change),
    /// The rate of one host's network card or of all, both ways, in bits per second; 0 has no limit.
    Rate(Option<usize>, f64),
    /// As in the beginning: no delay, no loss, no limit, nothing cut.
    Clear,
}

/// Links between hosts, which are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Which {
    All,
    /// All links of a host.
    Of(usize),
    Between(usize, usize),
}

/// What becomes of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    Cut(bool),
    /// Nanoseconds that a frame takes.
    Delay(u64),
    /// The share of frames, from 0 to 1, that are lost,
    Loss(f64),
    /// that come twice,
    Duplicate(f64),
    /// that come later than those behind them.
    Reorder(f64),
}

/// Reads an order to a network of `hosts` hosts.
pub(super) fn read(text: &str, hosts: usize) -> Result<Order> {
    let mut words = text.split_whitespace();
    let verb = words.next().context("an empty order")?;
    let mut value = || words.next().with_context(|| format!("{verb} how much?"));
    let change = match verb {
        "clear" => return Ok(Order::Clear),
        "cut" | "heal" => Change::Cut(verb == "cut"),
        "delay" => Change::Delay(nanoseconds(value()?)?),
        "loss" => Change::Loss(share(value()?)?),
        "duplicate" => Change::Duplicate(share(value()?)?),
        "reorder" => Change::Reorder(share(value()?)?),
        "rate" => {
            let rate = bits(value()?)?;
            let host = words.next().map(|name| host(name, hosts)).transpose()?;
            return Ok(Order::Rate(host, rate));
        }
        _ => {
            bail!("the network knows cut, heal, delay, loss, duplicate, reorder, rate and clear, not {verb}")
        }
    };
    let named: Vec<usize> = words.map(|name| host(name, hosts)).collect::<Result<_>>()?;
    let which = match named[..] {
        [] => Which::All,
        [one] => Which::Of(one),
        [one, other] if one != other => Which::Between(one, other),
        _ => bail!("\"{text}\" names no link: it takes no host, one, or two"),
    };
    Ok(Order::Links(which, change))
}

/// The number of a host, from 0, by its name.
pub(super) fn host(name: &str, hosts: usize) -> Result<usize> {
    let number: Option<usize> = name.strip_prefix('h').and_then(|number| number.parse().ok());
    match number {
        Some(number) if (1..=hosts).contains(&number) => Ok(number - 1),
        _ => bail!("there is no host {name}: they are h1 to h{hosts}"),
    }
}

fn nanoseconds(text: &str) -> Result<u64> {
    Ok((measured(text, &[("us", 1e3), ("ms", 1e6), ("s", 1e9)])?).round() as u64)
}

fn bits(text: &str) -> Result<f64> {
    measured(text, &[("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)])
}

fn share(text: &str) -> Result<f64> {
    let share = measured(text, &[("%", 0.01)])?;
    if share <= 1.0 { Ok(share) } else { bail!("{text} is more than everything") }
}

/// A number of at most a million that is not negative, with one of the units.
fn measured(text: &str, units: &[(&str, f64)]) -> Result<f64> {
    let split = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)));
    let value = split.and_then(|(number, unit)| Some((number.parse::<f64>().ok()?, unit)));
    match value {
        Some((number, unit)) if (0.0..=1e6).contains(&number) => Ok(number * unit),
        _ => bail!(
            "{text} is not a number with one of {}",
            units.iter().map(|u| u.0).collect::<Vec<_>>().join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read() {
        let links = |which, change| Order::Links(which, change);
        assert_eq!(read("cut h1 h3", 3).unwrap(), links(Which::Between(0, 2), Change::Cut(true)));
        assert_eq!(read("heal", 3).unwrap(), links(Which::All, Change::Cut(false)));
        assert_eq!(read("delay 0.1ms", 3).unwrap(), links(Which::All, Change::Delay(100_000)));
        assert_eq!(read("delay 50us h2", 3).unwrap(), links(Which::Of(1), Change::Delay(50_000)));
        assert_eq!(read("loss 5% h2", 3).unwrap(), links(Which::Of(1), Change::Loss(0.05)));
        assert_eq!(read("rate 1gbit", 3).unwrap(), Order::Rate(None, 1e9));
        assert_eq!(read("rate 0mbit h1", 3).unwrap(), Order::Rate(Some(0), 0.0));
        assert_eq!(read("clear", 3).unwrap(), Order::Clear);
        for wrong in [
            "",
            "cut h4",
            "cut h0",
            "cut h1 h1",
            "cut h1 h2 h3",
            "delay",
            "delay 5",
            "loss 101%",
            "loss -1%",
            "rate 1",
            "delay 1e9s",
            "stop",
        ] {
            assert!(read(wrong, 3).is_err(), "{wrong}");
        }
    }
}
