//! The four forms of a collective, from one line that says what its call is made of.

/// The example of one form of a collective, on two simulated ranks: what comes before, the call (or that of the root and that of the
/// other rank), and what is so afterwards. A call is its object, its name in two parts, what it only reads, and its other arguments.
macro_rules! example {
    ([$open:literal $begin:literal $form:literal $into:literal $scope:literal $given:literal $end:literal $close:literal]
     $setup:literal $([$object:literal $name:literal $kin:literal ($($read:literal)?) $arguments:literal])+ $check:literal) => {
        concat!(
            "\n```\n# use mpi::traits::*;\n# mpi::environment::Universe::simulated(2, |universe| {\n# let world = universe.world();\n",
            $setup, "\n", $open,
            example!(@calls $(concat!(
                $begin, $object, ".", $form, $name, $into, $kin, "(", $scope, $($given, $read,)? $arguments, ")", $end, ";\n"
            );)+),
            $close, $check, "\n# });\n```\n"
        )
    };
    (@calls $call:expr;) => { $call };
    (@calls $root:expr; $other:expr;) => {
        concat!("if root.is_self() {\n", $root, "} else {\n", $other, "}\n")
    };
}

/// Declares collectives: documentation, an example, the kind, the names of the four forms, the arguments with their types and what of the
/// runtime they become (in brackets what is only given; the other one is what a request gives back), the operation if there is one, and
/// the call made of all that. `$place` tells the communicator and the root.
macro_rules! collectives {
    // Runs one to its end.
    (@run $this:ident $place:ident $Kind:ident ($([$given:ident $read:ident])? $last:ident $memory:ident $(; $op:ident)?)
     |$comm:ident, $root:ident, $kind:ident| $call:expr) => {{
        let (($comm, $root), $kind) = ($place($this), Kind::$Kind);
        // SAFETY: the collective is over when it returns.
        $(let $given = unsafe { Memory::$read($given) };)?
        // SAFETY: as above.
        let $last = unsafe { Memory::$memory($last) };
        $(let $op = $op.object();)?
        let signed = Signed::new($kind, [$(&$given,)? &$last], $root.into(), None$(.or(Some(&$op)))?);
        signed.run($comm, || $call)
    }};
    ($place:ident: $(
        $doc:literal
        example $setup:literal $([$($example:tt)+])+ $check:literal
        $Kind:ident: $blocking:ident $try:ident $immediate:ident $init:ident
        (
            $([$given:ident: &$Given:ident as $gives:ident by $read:ident])?
            $last:ident: &$(($mut:tt))? $Last:ident as $bound:ident by $memory:ident
            $(; $op:ident)?
        )
        = |$comm:ident, $root:ident, $kind:ident| $call:expr;
    )*) => {$(
        #[doc = $doc]
        #[doc = example!(["" "" "try_" "_into" "" "&" ".unwrap()" ""] $setup $([$($example)+])+ $check)]
        /// # Errors
        /// The arguments do not fit together or to those of other processes, or one of these is gone.
        fn $try<$($Given: $gives + ?Sized,)? $Last: $bound + ?Sized>(
            &self,
            $($given: &$Given,)?
            $last: &$($mut)? $Last,
            $($op: impl Operation,)?
        ) -> Result<()> {
            tried(|| collectives!(
                @run self $place $Kind ($([$given $read])? $last $memory $(; $op)?) |$comm, $root, $kind| $call
            ))
        }

        #[doc = $doc]
        #[doc = example!(["" "" "" "_into" "" "&" "" ""] $setup $([$($example)+])+ $check)]
        #[track_caller]
        fn $blocking<$($Given: $gives + ?Sized,)? $Last: $bound + ?Sized>(
            &self,
            $($given: &$Given,)?
            $last: &$($mut)? $Last,
            $($op: impl Operation,)?
        ) {
            expect(collectives!(
                @run self $place $Kind ($([$given $read])? $last $memory $(; $op)?) |$comm, $root, $kind| $call
            ))
        }

        #[doc = $doc]
        /// Starts it.
        #[doc = example!(["mpi::request::scope(|scope| {\n" "" "immediate_" "_into" "scope, " "&" ".wait()" "});\n"] $setup $([$($example)+])+ $check)]
        #[track_caller]
        fn $immediate<'a, $($Given: $gives + ?Sized,)? $Last: $bound + ?Sized, Sc: Scope<'a>>(
            &self,
            scope: Sc,
            $($given: &'a $Given,)?
            $last: &'a $($mut)? $Last,
            $($op: impl Operation + 'a,)?
        ) -> Request<'a, $Last, Sc> {
            let (($comm, $root), $kind) = ($place(self), Kind::$Kind);
            let data: *const $Last = $last;
            // SAFETY: the request borrows the buffers.
            $(let $given = unsafe { Memory::$read($given) };)?
            // SAFETY: as above.
            let $last = unsafe { Memory::$memory($last) };
            $(let $op = $op.object();)?
            let signed = Signed::new($kind, [$(&$given,)? &$last], $root.into(), None$(.or(Some(&$op)))?);
            let operation = expect(signed.start($comm, || $call));
            // SAFETY: they are borrowed for 'a.
            unsafe { Request::new(operation.held_by($comm.runtime()), data, scope) }
        }

        #[doc = $doc]
        /// It is started again and again. All processes make their persistent collectives in one order.
        #[doc = example!(["{\n" "let mut request = " "" "_init" "" "&mut " ";\nmpi::request::scope(|scope| request.start(scope).wait())" "}\n"] $setup $([$($example)+])+ $check)]
        #[track_caller]
        fn $init<'a, $($Given: $gives + ?Sized,)? $Last: $bound + ?Sized>(
            &self,
            $($given: &'a mut $Given,)?
            $last: &'a mut $Last,
            $($op: impl Operation + 'a,)?
        ) -> PersistentRequest<'a, $Last $(, $Given)?> {
            let (($comm, $root), $kind) = ($place(self), Kind::$Kind);
            let _ = ($root, $kind);
            let data = &raw mut *$last;
            $(let also = &raw mut *$given;)?
            // SAFETY: the request borrows the buffers.
            $(let $given = unsafe { Memory::$read(&*also) };)?
            // SAFETY: as above.
            let $last = unsafe { Memory::$memory(&mut *data) };
            $(let $op = $op.object();)?
            let operation = expect($call.and_then(|call| $comm.persist(call)));
            // SAFETY: they are borrowed mutably for 'a.
            let made = unsafe { PersistentRequest::new($comm, operation, data) };
            // SAFETY: as above.
            $(let made = unsafe { made.giving::<$Given>(also) };)?
            made
        }
    )*};
}
