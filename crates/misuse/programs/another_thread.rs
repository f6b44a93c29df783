//! A request that another thread may complete.
fn is_send<T: Send>() {}

fn main() {
    is_send::<mpi::request::Request<'static, i32>>();
}
