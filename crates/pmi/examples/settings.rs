//! Prints the settings, one a line: variable, default and meaning, parted by tabs.

fn main() {
    for setting in banyan_pmi::settings::ALL {
        println!("{}\t{}\t{}", setting.name, setting.default, setting.about);
    }
}
