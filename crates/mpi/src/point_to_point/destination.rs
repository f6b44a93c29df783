//! Sends.

use banyan_runtime::SendMode;

use super::dest_of;
use crate::Tag;
use crate::datatype::{Buffer, read};
use crate::error::{Result, expect, tried};
use crate::request::{PersistentRequest, Request, Scope};
use crate::topology::handle::AsHandle;
use crate::topology::{AsCommunicator, Process, Rank};

fn send<D: Destination + ?Sized, B: Buffer + ?Sized>(
    to: &D,
    buf: &B,
    tag: Tag,
    mode: SendMode,
) -> Result<()> {
    // SAFETY: the send is over when it returns, or the library has a copy.
    let data = unsafe { read(buf) };
    to.as_communicator().as_handle().comm().send(&data, dest_of(to.destination_rank()), tag, mode)
}

fn start<'a, D: Destination + ?Sized, B: Buffer + ?Sized, S: Scope<'a>>(
    to: &D,
    scope: S,
    buf: &'a B,
    tag: Tag,
    mode: SendMode,
) -> Result<Request<'a, B, S>> {
    let comm = to.as_communicator().as_handle().comm();
    // SAFETY: the request borrows the buffer.
    let data = unsafe { read(buf) };
    let started = comm.isend(&data, dest_of(to.destination_rank()), tag, mode)?;
    // SAFETY: the buffer is borrowed for 'a.
    Ok(unsafe { Request::new(started.hold(comm.runtime()), buf, scope) })
}

fn persist<'a, D: Destination + ?Sized, B: Buffer + ?Sized>(
    to: &D,
    buf: &'a mut B,
    tag: Tag,
    mode: SendMode,
) -> Result<PersistentRequest<'a, B>> {
    let comm = to.as_communicator().as_handle().comm();
    let start: *mut B = buf;
    // SAFETY: the request borrows the buffer.
    let data = unsafe { read(&*start) };
    let operation = comm.send_init(&data, dest_of(to.destination_rank()), tag, mode)?;
    // SAFETY: the buffer is borrowed mutably for 'a.
    Ok(unsafe { PersistentRequest::new(comm, operation, start) })
}

/// The example of one form of a send, on two simulated ranks: what comes before the call, how it begins, its name, arguments, and end.
macro_rules! example {
    ($before:literal [$($begin:literal)+] $name:ident $arguments:literal [$($end:literal)+]) => {
        concat!(
            "\n```\n# use mpi::traits::*;\n# mpi::environment::Universe::simulated(2, |universe| {\n# let world = universe.world();\n\
             if world.rank() == 0 {\n    let (mut number, to) = (7, world.process_at_rank(1));\n",
            $before, "    world.barrier();\n    ",
            $($begin,)+ "to.", stringify!($name), $arguments, $($end,)+ ";\n\
             } else {\n    let receive = world.process_at_rank(0).immediate_receive::<i32>();\n    world.barrier();\n    \
             assert_eq!(receive.get().0, 7);\n}\n# });\n```\n"
        )
    };
}

/// The sends of a mode: blocking with a result, blocking, immediate, and persistent, each with and without a tag.
macro_rules! sends {
    ($($mode:ident, $what:literal $(, $unsafe:ident: $safety:literal)?, $before:literal $begin:literal $end:literal:
        $try_with_tag:ident $try:ident $with_tag:ident $send:ident $immediate_with_tag:ident $immediate:ident
        $init_with_tag:ident $init:ident;)*) => {
        /// Where messages go to.
        ///
        /// ```
        /// use mpi::traits::*;
        ///
        /// fn whom(to: &impl Destination) -> mpi::Rank {
        ///     to.destination_rank()
        /// }
        ///
        /// let universe = mpi::initialize().unwrap();
        /// assert_eq!(whom(&universe.world().this_process()), 0);
        /// ```
        pub trait Destination: AsCommunicator {
            /// The rank of the process that they go to.
            fn destination_rank(&self) -> Rank;

            $(
                /// Sends with a tag; returns when the buffer may be used again.
                #[doc = $what]
                #[doc = example!($before [$begin] $try_with_tag "(&number, 3)" [".unwrap()" $end])]
                ///
                /// # Errors
                /// There is no such rank or tag, or the receiver is gone.
                $(#[doc = concat!("\n# Safety\n", $safety)])?
                $($unsafe)? fn $try_with_tag<Buf: Buffer + ?Sized>(&self, buf: &Buf, tag: Tag) -> Result<()> {
                    tried(|| send(self, buf, tag, SendMode::$mode))
                }

                /// Sends; returns when the buffer may be used again.
                #[doc = $what]
                #[doc = example!($before [$begin] $try "(&number)" [".unwrap()" $end])]
                ///
                /// # Errors
                /// The receiver is gone.
                $(#[doc = concat!("\n# Safety\n", $safety)])?
                $($unsafe)? fn $try<Buf: Buffer + ?Sized>(&self, buf: &Buf) -> Result<()> {
                    tried(|| send(self, buf, Tag::default(), SendMode::$mode))
                }

                /// Sends with a tag; returns when the buffer may be used again.
                #[doc = $what]
                #[doc = example!($before [$begin] $with_tag "(&number, 3)" [$end])]
                $(#[doc = concat!("\n# Safety\n", $safety)])?
                #[track_caller]
                $($unsafe)? fn $with_tag<Buf: Buffer + ?Sized>(&self, buf: &Buf, tag: Tag) {
                    expect(send(self, buf, tag, SendMode::$mode))
                }

                /// Sends; returns when the buffer may be used again.
                #[doc = $what]
                #[doc = example!($before [$begin] $send "(&number)" [$end])]
                $(#[doc = concat!("\n# Safety\n", $safety)])?
                #[track_caller]
                $($unsafe)? fn $send<Buf: Buffer + ?Sized>(&self, buf: &Buf) {
                    expect(send(self, buf, Tag::default(), SendMode::$mode))
                }

                /// Starts to send with a tag.
                #[doc = $what]
                #[doc = example!($before ["mpi::request::scope(|scope| { " $begin] $immediate_with_tag "(scope, &number, 3)" [".wait()" $end " })"])]
                $(#[doc = concat!("\n# Safety\n", $safety)])?
                #[track_caller]
                $($unsafe)? fn $immediate_with_tag<'a, Sc: Scope<'a>, Buf: Buffer + ?Sized>(
                    &self,
                    scope: Sc,
                    buf: &'a Buf,
                    tag: Tag,
                ) -> Request<'a, Buf, Sc> {
                    expect(start(self, scope, buf, tag, SendMode::$mode))
                }

                /// Starts to send.
                #[doc = $what]
                #[doc = example!($before ["mpi::request::scope(|scope| { " $begin] $immediate "(scope, &number)" [".wait()" $end " })"])]
                $(#[doc = concat!("\n# Safety\n", $safety)])?
                #[track_caller]
                $($unsafe)? fn $immediate<'a, Sc: Scope<'a>, Buf: Buffer + ?Sized>(
                    &self,
                    scope: Sc,
                    buf: &'a Buf,
                ) -> Request<'a, Buf, Sc> {
                    expect(start(self, scope, buf, Tag::default(), SendMode::$mode))
                }

                /// A send with a tag that is started again and again.
                #[doc = $what]
                #[doc = example!($before ["let mut request = " $begin] $init_with_tag "(&mut number, 3)" [$end ";\n    mpi::request::scope(|scope| { request.start(scope).wait(); })"])]
                $(#[doc = concat!("\n# Safety\n", $safety)])?
                #[track_caller]
                $($unsafe)? fn $init_with_tag<'a, Buf: Buffer + ?Sized>(
                    &self,
                    buf: &'a mut Buf,
                    tag: Tag,
                ) -> PersistentRequest<'a, Buf> {
                    expect(persist(self, buf, tag, SendMode::$mode))
                }

                /// A send that is started again and again.
                #[doc = $what]
                #[doc = example!($before ["let mut request = " $begin] $init "(&mut number)" [$end ";\n    mpi::request::scope(|scope| { request.start(scope).wait(); })"])]
                $(#[doc = concat!("\n# Safety\n", $safety)])?
                #[track_caller]
                $($unsafe)? fn $init<'a, Buf: Buffer + ?Sized>(&self, buf: &'a mut Buf) -> PersistentRequest<'a, Buf> {
                    expect(persist(self, buf, Tag::default(), SendMode::$mode))
                }
            )*
        }
    };
}

sends! {
    Standard, "The message may wait for its receive.", "" "" "":
        try_send_with_tag try_send send_with_tag send immediate_send_with_tag immediate_send
        send_init_with_tag send_init;
    Buffered, "The message waits for its receive in the buffer that [`crate::environment::Universe::set_buffer_size`] makes.",
        "    universe.set_buffer_size(4096);\n" "" "":
        try_buffered_send_with_tag try_buffered_send buffered_send_with_tag buffered_send
        immediate_buffered_send_with_tag immediate_buffered_send
        buffered_send_init_with_tag buffered_send_init;
    Sync, "The send is over only when the receive has begun.", "" "" "":
        try_synchronous_send_with_tag try_synchronous_send synchronous_send_with_tag synchronous_send
        immediate_synchronous_send_with_tag immediate_synchronous_send
        synchronous_send_init_with_tag synchronous_send_init;
    Ready, "The receive has begun already.", unsafe: "The receive has begun, at each start.",
        "    // The other rank has begun to receive when it has been at the barrier.\n" "unsafe { " " }":
        try_ready_send_with_tag try_ready_send ready_send_with_tag ready_send
        immediate_ready_send_with_tag immediate_ready_send
        ready_send_init_with_tag ready_send_init;
}

impl Destination for Process<'_> {
    fn destination_rank(&self) -> Rank {
        self.rank()
    }
}
