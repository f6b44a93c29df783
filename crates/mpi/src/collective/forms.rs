//! The three forms of a collective, from one line that says what its call is made of.

/// Declares collectives: documentation, the kind, the names of the three forms, the arguments with their types and what of the runtime they become,
/// the argument that a request gives back, the operation if there is one, and the call made of all that. `$place` tells the
/// communicator and the root.
macro_rules! collectives {
    ($place:ident: $(
        $doc:literal
        $Kind:ident: $blocking:ident $try:ident $immediate:ident
        ($($arg:ident: &$(($mut:tt))? $Type:ident as $bound:ident by $memory:ident),+ $(; $op:ident)?) gives $last:ident: $Last:ident
        = |$comm:ident, $root:ident, $kind:ident| $call:expr;
    )*) => {$(
        #[doc = $doc]
        ///
        /// # Errors
        /// The arguments do not fit together or to those of other processes, or one of these is gone.
        fn $try<$($Type: $bound + ?Sized),+>(
            &self,
            $($arg: &$($mut)? $Type,)+
            $($op: impl Operation,)?
        ) -> Result<()> {
            let (($comm, $root), $kind) = ($place(self), Kind::$Kind);
            // SAFETY: the collective is over when it returns.
            $(let $arg = unsafe { Memory::$memory($arg) };)+
            $(let $op = $op.object();)?
            let signed = Signed::new($kind, [$(&$arg),+], $root.into(), None$(.or(Some(&$op)))?);
            signed.run($comm, || $call)
        }

        #[doc = $doc]
        #[track_caller]
        fn $blocking<$($Type: $bound + ?Sized),+>(
            &self,
            $($arg: &$($mut)? $Type,)+
            $($op: impl Operation,)?
        ) {
            expect(self.$try($($arg,)+ $($op)?))
        }

        #[doc = $doc]
        /// Starts it.
        #[track_caller]
        fn $immediate<'a, $($Type: $bound + ?Sized,)+ Sc: Scope<'a>>(
            &self,
            scope: Sc,
            $($arg: &'a $($mut)? $Type,)+
            $($op: impl Operation + 'a,)?
        ) -> Request<'a, $Last, Sc> {
            let (($comm, $root), $kind) = ($place(self), Kind::$Kind);
            let data: *const $Last = $last;
            // SAFETY: the request borrows the buffers.
            $(let $arg = unsafe { Memory::$memory($arg) };)+
            $(let $op = $op.object();)?
            let signed = Signed::new($kind, [$(&$arg),+], $root.into(), None$(.or(Some(&$op)))?);
            let operation = expect(signed.start($comm, || $call));
            // SAFETY: they are borrowed for 'a.
            unsafe { Request::new(operation.held_by($comm.runtime()), data, scope) }
        }
    )*};
}
