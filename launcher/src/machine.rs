//! `--machine`: shows the profile of this machine, or measures it anew.

use std::fmt::Write;

use banyan_topo::Kept;

use crate::measure::measure;

/// The machine, where its profile comes from, and all its figures beside those that are built in. It is measured if `anew`; a profile that
/// cannot be kept is shown all the same.
pub(crate) fn machine(anew: bool) -> String {
    let here = Kept::here();
    let mut text = format!("machine  {}\n", here.machine());
    let profile = match anew {
        true => {
            // What cannot be measured now is as it was measured before.
            let profile = measure(here.profile());
            let _ = match here.keep(&profile) {
                Ok(file) => writeln!(text, "kept in  {}", file.display()),
                Err(why) => writeln!(text, "not kept: {why}"),
            };
            profile
        }
        false => {
            let kept = here.load();
            let _ = match (&kept, here.file()) {
                (Some(_), Some(file)) => writeln!(text, "kept in  {}", file.display()),
                _ => writeln!(text, "not measured yet: mpirun --machine=measure does so"),
            };
            kept.unwrap_or(here.built_in())
        }
    };
    let _ =
        writeln!(text, "profile  {}\n\n{:24}{:>14}{:>14}", profile.source(), "figure", "here", "built in");
    let (mut profile, mut built_in) = (profile, here.built_in());
    for ((name, here), (_, built_in)) in profile.figures().into_iter().zip(built_in.figures()) {
        let _ = writeln!(text, "{name:24}{:>14}{:>14}", shown(&name, *here), shown(&name, *built_in));
    }
    text
}

/// A figure in the unit that people know it by.
fn shown(name: &str, seconds: f64) -> String {
    match name.ends_with("byte") {
        true => format!("{:.1} GB/s", 1e-9 / seconds),
        false => format!("{:.3} us", seconds * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use banyan_topo::Profile;

    use super::*;

    #[test]
    fn all_figures_are_shown() {
        let text = machine(false);
        for (name, _) in Profile::default().figures() {
            assert!(text.contains(&name), "{name}: {text}");
        }
        assert_eq!(shown("near.copy_byte", 1e-10), "10.0 GB/s");
        assert_eq!(shown("turn", 1.5e-6), "1.500 us");
    }
}
