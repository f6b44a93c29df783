//! Prints what is counted of devices, one a line: name, unit and meaning, parted by tabs.

fn main() {
    for counter in banyan_memory::device_counters() {
        println!("{}\t{}\t{}", counter.name, counter.unit, counter.about);
    }
}
