//! The three forms of a collective, from one line that says what its call is made of.

/// Declares collectives: documentation, the names of the three forms, the arguments with their types and what of the runtime they become,
/// the argument that a request gives back, the operation if there is one, and the call made of all that. `$place` tells the
/// communicator and the root.
macro_rules! collectives {
    ($place:ident: $(
        $doc:literal
        $blocking:ident $try:ident $immediate:ident
        ($($arg:ident: &$(($mut:tt))? $Type:ident as $bound:ident by $memory:ident),+ $(; $op:ident)?) gives $last:ident: $Last:ident
        = |$comm:ident, $root:ident| $call:expr;
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
            let ($comm, $root) = $place(self);
            let _ = $root;
            // SAFETY: the collective is over when it returns.
            $(let $arg = unsafe { Memory::$memory($arg) };)+
            $comm.run($call?)
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
            let ($comm, $root) = $place(self);
            let _ = $root;
            let data: *const $Last = $last;
            // SAFETY: the request borrows the buffers.
            $(let $arg = unsafe { Memory::$memory($arg) };)+
            // SAFETY: they are borrowed for 'a.
            expect(unsafe { super::start($comm, $call, data, scope) })
        }
    )*};
}
