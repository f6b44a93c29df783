//! MPI_X_toint and MPI_X_fromint: handles are 31-bit numbers, so both are the identity.

use crate::boundary::mpi;
use crate::ffi::*;

macro_rules! conversions {
    ($(fn $toint:ident fn $fromint:ident or $null:ident;)*) => { mpi! {$(
        fn $toint(handle) or 0; { Ok(handle.0 as c_int) }
        fn $fromint(number) or $null; { Ok(number.into()) }
    )*} };
}

conversions! {
    fn MPI_Comm_toint fn MPI_Comm_fromint or MPI_COMM_NULL;
    fn MPI_Errhandler_toint fn MPI_Errhandler_fromint or MPI_ERRHANDLER_NULL;
    fn MPI_File_toint fn MPI_File_fromint or MPI_FILE_NULL;
    fn MPI_Group_toint fn MPI_Group_fromint or MPI_GROUP_NULL;
    fn MPI_Info_toint fn MPI_Info_fromint or MPI_INFO_NULL;
    fn MPI_Message_toint fn MPI_Message_fromint or MPI_MESSAGE_NULL;
    fn MPI_Op_toint fn MPI_Op_fromint or MPI_OP_NULL;
    fn MPI_Request_toint fn MPI_Request_fromint or MPI_REQUEST_NULL;
    fn MPI_Session_toint fn MPI_Session_fromint or MPI_SESSION_NULL;
    fn MPI_Type_toint fn MPI_Type_fromint or MPI_DATATYPE_NULL;
    fn MPI_Win_toint fn MPI_Win_fromint or MPI_WIN_NULL;
}
