//! `--machine`: shows the profile of this machine, measures it anew, or shows what messages take by each way.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use banyan_plot::{Joined, Line, RGBColor, plot};
use banyan_topo::{Kept, Origin};

use crate::Trouble;
use crate::measure::curves::{Curves, LENGTHS, WAYS, curves};
use crate::measure::measure;

/// What is asked about the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum About {
    /// Its profile.
    Profile,
    /// The same, measured before.
    Measured,
    /// What messages take over their length.
    Curves,
    /// The same, drawn in this file.
    Drawing(PathBuf),
}

impl FromStr for About {
    type Err = String;

    fn from_str(text: &str) -> Result<About, String> {
        match text {
            "show" => Ok(About::Profile),
            "measure" => Ok(About::Measured),
            "curves" => Ok(About::Curves),
            file if file.ends_with(".svg") => Ok(About::Drawing(file.into())),
            _ => Err("known are show, measure, curves and the name of a file that ends with .svg".to_owned()),
        }
    }
}

/// The answer to what is asked.
///
/// # Errors
/// If a drawing cannot be written.
pub(crate) fn machine(what: &About) -> Result<String, Trouble> {
    let here = Kept::here();
    let head = format!("machine  {}\n", here.machine());
    match what {
        About::Profile | About::Measured => Ok(head + &figures(&here, *what == About::Measured)),
        About::Curves | About::Drawing(_) => {
            let profile = here.profile();
            let curves = curves(&profile).ok_or_else(|| Trouble::new("this machine has only one core"))?;
            match what {
                About::Drawing(file) => drawn(&curves, file),
                _ => Ok(format!("{head}profile  {}\n{}", profile.source(), shown_curves(&curves))),
            }
        }
    }
}

/// Where the profile comes from, and all its figures beside those that are built in. It is measured if `anew`; a profile that cannot be
/// kept is shown all the same.
fn figures(here: &Kept, anew: bool) -> String {
    let mut text = String::new();
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
    let _ = writeln!(
        text,
        "profile  {}\n\n{:24}{:>14}{:>14}  the one here is",
        profile.source(),
        "figure",
        "here",
        "built in"
    );
    let (mut figures, mut built_in) = (profile, here.built_in());
    for ((name, here), (_, built_in)) in figures.figures().into_iter().zip(built_in.figures()) {
        let (here, built_in) = (shown(&name, *here), shown(&name, *built_in));
        let _ = writeln!(text, "{name:24}{here:>14}{built_in:>14}  {}", origin(profile.origin(&name)));
    }
    text
}

/// For people, where a figure comes from.
pub(crate) fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Measured => "measured here",
        Origin::BuiltIn => "built in",
        Origin::Assumed => "assumed",
    }
}

/// A figure in the unit that people know it by.
pub(crate) fn shown(name: &str, value: f64) -> String {
    match name {
        "last_level_cache" => format!("{:.1} MiB", value / f64::from(1 << 20)),
        _ if name.ends_with("byte") => format!("{:.1} GB/s", 1e-9 / value),
        _ => format!("{:.3} us", value * 1e6),
    }
}

/// A row for each length, with two columns for each way.
fn shown_curves(curves: &Curves) -> String {
    let mut text = format!(
        "A message between two cores ({}), us: by the profile / measured now on bare threads\n\n{:>8}",
        curves.distance, "bytes"
    );
    WAYS.iter().for_each(|way| text += &format!("{way:>20}"));
    for ((bytes, by_profile), measured) in LENGTHS.iter().zip(&curves.by_profile).zip(&curves.measured) {
        let _ = write!(text, "\n{bytes:>8}");
        for (by_profile, measured) in by_profile.iter().zip(measured) {
            let measured =
                if measured.is_finite() { format!("{:.2}", measured * 1e6) } else { "-".to_owned() };
            let _ = write!(text, "{:>20}", format!("{:.2} / {measured}", by_profile * 1e6));
        }
    }
    text + "\n"
}

/// Colours that differ in brightness too, on light and on dark ground.
const COLOURS: [RGBColor; WAYS.len()] = [
    RGBColor(22, 150, 80),
    RGBColor(80, 130, 220),
    RGBColor(230, 130, 20),
    RGBColor(200, 70, 160),
    RGBColor(140, 140, 140),
];

/// Draws the curves in a file; says what is there.
fn drawn(curves: &Curves, file: &Path) -> Result<String, Trouble> {
    let wrong = |why: String| Trouble::new(format!("{}: {why}", file.display()));
    let line = |way: usize, times: &[[f64; WAYS.len()]], what: &str, joined: Joined| {
        let points = LENGTHS.iter().zip(times).map(|(bytes, row)| (*bytes as f64, row[way] * 1e6));
        let points: Vec<(f64, f64)> = points.filter(|(_, time)| *time > 0.0).collect();
        Line { name: format!("{}, {what}", WAYS[way]), colour: COLOURS[way], points, joined }
    };
    let lines = (0..WAYS.len()).flat_map(|way| {
        [
            line(way, &curves.by_profile, "by the profile", Joined::Dashes),
            line(way, &curves.measured, "measured", Joined::Points),
        ]
    });
    let lines: Vec<Line> = lines.filter(|line| !line.points.is_empty()).collect();
    let svg = plot("bytes", "us", &lines).map_err(wrong)?.unwrap_or_default();
    std::fs::write(file, svg).map_err(|why| wrong(why.to_string()))?;
    Ok(format!("What messages take by each way is drawn in {}\n", file.display()))
}

#[cfg(test)]
mod tests {
    use banyan_topo::Profile;

    use super::*;
    use crate::measure::curves::by_profile;

    #[test]
    fn all_figures_are_shown() {
        let text = machine(&About::Profile).unwrap();
        for (name, _) in Profile::default().figures() {
            assert!(text.contains(&name), "{name}: {text}");
        }
        assert_eq!(shown("near.copy_byte", 1e-10), "10.0 GB/s");
        assert_eq!(shown("turn", 1.5e-6), "1.500 us");
    }

    #[test]
    fn curves_are_shown_and_drawn_with_what_is_missing() {
        let profile = Profile::default();
        let by_profile = by_profile(&profile, 2);
        let mut measured = by_profile;
        measured[3][1] = f64::NAN;
        measured.iter_mut().for_each(|row| row[2] = f64::NAN);
        let curves = Curves { distance: "near", by_profile, measured };
        let text = shown_curves(&curves);
        assert_eq!(text.lines().count(), 3 + LENGTHS.len(), "{text}");
        assert!(text.contains("0.34 / 0.34") && text.contains("1.49 / -"), "{text}");
        let file = std::env::temp_dir().join(format!("banyan-curves-{}.svg", std::process::id()));
        drawn(&curves, &file).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        for (way, name) in WAYS.iter().enumerate() {
            assert!(svg.contains(&format!("{name}, by the profile")), "{svg}");
            assert_eq!(svg.contains(&format!("{name}, measured")), way != 2, "{svg}");
        }
        assert!(drawn(&curves, Path::new("/nonexistent/at.svg")).is_err());
        assert!("measured".parse::<About>().is_err());
    }
}
