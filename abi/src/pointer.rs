//! [`Ptr`]: a pointer that a C program passed, with the accesses that MPI's contract allows.

use crate::ffi::{Handle, c_char, c_void};
use banyan_runtime::{Class, Error, Result};

/// A pointer argument of an MPI call.
///
/// Values of this type come from C only (they are parameters of exported functions, or read through
/// such parameters), and MPI's contract is that a pointer is null or points to objects of its type for the
/// whole call. The accesses below rely on that, and check what can be checked: null.
#[derive(Debug)]
#[repr(transparent)]
pub struct Ptr<T>(*mut T);

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T> Ptr<T> {
    /// NULL.
    pub fn null() -> Ptr<T> {
        Ptr(std::ptr::null_mut())
    }

    /// The pointer itself.
    pub fn raw(self) -> *mut T {
        self.0
    }

    /// The address as a number.
    pub fn address(self) -> usize {
        self.0 as usize
    }

    /// True for NULL (which is also MPI_BOTTOM, MPI_STATUS_IGNORE, ...).
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Stores `value`.
    ///
    /// # Errors
    /// MPI_ERR_ARG for a null pointer.
    #[inline]
    pub fn set(self, value: T) -> Result<()> {
        if self.is_null() {
            return Err(null());
        }
        // SAFETY: not null, and by MPI's contract writable as a T (see `Ptr`); unaligned because a status
        // or an array inside a packed structure may lie anywhere.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Stores `value` unless the pointer is null.
    #[inline]
    pub fn set_if(self, value: T) {
        if !self.is_null() {
            let _ = self.set(value);
        }
    }

    /// The element at index `at` of the array, NULL if this is NULL.
    pub fn nth(self, at: usize) -> Ptr<T> {
        Ptr(self.0.wrapping_add(if self.is_null() { 0 } else { at }))
    }

    /// Stores `value` at index `at` of the array.
    #[inline]
    pub fn put(self, at: usize, value: T) -> Result<()> {
        Ptr(self.0.wrapping_add(if self.is_null() { 0 } else { at })).set(value)
    }
}

impl<T: Handle> Ptr<T> {
    /// Stores a null handle, unless the pointer is null.
    #[inline]
    pub fn clear(self) {
        let _ = self.set(T::NULL);
    }
}

impl<T: Copy> Ptr<T> {
    /// What the pointer points to.
    ///
    /// # Errors
    /// MPI_ERR_ARG for a null pointer.
    #[inline]
    pub fn get(self) -> Result<T> {
        if self.is_null() {
            return Err(null());
        }
        // SAFETY: not null, and by MPI's contract readable as a T (see `Ptr`).
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The first `len` values, copied; no access if `len` is 0.
    ///
    /// # Errors
    /// MPI_ERR_ARG for a null pointer with `len > 0`, MPI_ERR_NO_MEM if there is no memory for the copy.
    pub fn list(self, len: usize) -> Result<Vec<T>> {
        let mut all = crate::buffers::room(if self.is_null() { 0 } else { len })?;
        for at in 0..len {
            all.push(self.at(at)?);
        }
        Ok(all)
    }

    /// The value at index `at` of the array.
    #[inline]
    pub fn at(self, at: usize) -> Result<T> {
        Ptr(self.0.wrapping_add(if self.is_null() { 0 } else { at })).get()
    }

    /// True if the array starts with these values; false for a null pointer, if there are any.
    #[inline(always)]
    pub fn starts_with<V: PartialEq>(self, values: &[V]) -> bool
    where
        T: Into<V>,
    {
        // SAFETY: not null, and by MPI's contract readable as so many T (see `Ptr`).
        let at = |at: usize| unsafe { self.0.wrapping_add(at).read_unaligned() }.into();
        values.is_empty()
            || !self.is_null() && values.iter().enumerate().all(|(index, value)| at(index) == *value)
    }

    /// Stores the values of `list`, one after the other.
    pub fn store(self, list: &[T]) -> Result<()> {
        list.iter().enumerate().try_for_each(|(at, value)| self.put(at, *value))
    }
}

impl Ptr<c_void> {
    /// The same address as a pointer to `T`.
    pub fn cast<T>(self) -> Ptr<T> {
        Ptr(self.0.cast())
    }
}

impl Ptr<c_char> {
    /// The C string, without its NUL.
    ///
    /// # Errors
    /// MPI_ERR_ARG for a null pointer.
    pub fn bytes(self) -> Result<Vec<u8>> {
        if self.is_null() {
            return Err(null());
        }
        // SAFETY: not null, and by MPI's contract a string with a NUL at its end.
        Ok(unsafe { std::ffi::CStr::from_ptr(self.0) }.to_bytes().to_vec())
    }

    /// The C string as text; bytes that are not UTF-8 are replaced.
    ///
    /// # Errors
    /// MPI_ERR_ARG for a null pointer.
    pub fn text(self) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.bytes()?).into_owned())
    }

    /// Writes `text` and a NUL, cut to `room` bytes in all (nothing if that is 0); returns the length written
    /// without the NUL.
    ///
    /// # Errors
    /// MPI_ERR_ARG for a null pointer with `room > 0`.
    pub fn write(self, text: &[u8], room: usize) -> Result<usize> {
        let Some(most) = room.checked_sub(1) else { return Ok(0) };
        let len = text.len().min(most);
        for (at, byte) in text[..len].iter().chain([&0]).enumerate() {
            self.put(at, *byte as c_char)?;
        }
        Ok(len)
    }
}

#[cold]
fn null() -> Error {
    Error::new(Class::ERR_ARG, "a pointer argument is NULL where the call has to read or to write")
}
