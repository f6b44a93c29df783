//! MPI_X_toint and MPI_X_fromint: handles are 31-bit numbers, so both are the identity.

use crate::boundary::mpi;
use crate::ffi::*;

mpi! {
    fn MPI_Comm_toint(comm: MPI_Comm) -> c_int, or 0; { Ok(comm.0 as c_int) }
    fn MPI_Comm_fromint(comm: c_int) -> MPI_Comm, or MPI_COMM_NULL; { Ok(comm.into()) }
    fn MPI_Errhandler_toint(errhandler: MPI_Errhandler) -> c_int, or 0; { Ok(errhandler.0 as c_int) }
    fn MPI_Errhandler_fromint(errhandler: c_int) -> MPI_Errhandler, or MPI_ERRHANDLER_NULL; { Ok(errhandler.into()) }
    fn MPI_File_toint(file: MPI_File) -> c_int, or 0; { Ok(file.0 as c_int) }
    fn MPI_File_fromint(file: c_int) -> MPI_File, or MPI_FILE_NULL; { Ok(file.into()) }
    fn MPI_Group_toint(group: MPI_Group) -> c_int, or 0; { Ok(group.0 as c_int) }
    fn MPI_Group_fromint(group: c_int) -> MPI_Group, or MPI_GROUP_NULL; { Ok(group.into()) }
    fn MPI_Info_toint(info: MPI_Info) -> c_int, or 0; { Ok(info.0 as c_int) }
    fn MPI_Info_fromint(info: c_int) -> MPI_Info, or MPI_INFO_NULL; { Ok(info.into()) }
    fn MPI_Message_toint(message: MPI_Message) -> c_int, or 0; { Ok(message.0 as c_int) }
    fn MPI_Message_fromint(message: c_int) -> MPI_Message, or MPI_MESSAGE_NULL; { Ok(message.into()) }
    fn MPI_Op_toint(op: MPI_Op) -> c_int, or 0; { Ok(op.0 as c_int) }
    fn MPI_Op_fromint(op: c_int) -> MPI_Op, or MPI_OP_NULL; { Ok(op.into()) }
    fn MPI_Request_toint(request: MPI_Request) -> c_int, or 0; { Ok(request.0 as c_int) }
    fn MPI_Request_fromint(request: c_int) -> MPI_Request, or MPI_REQUEST_NULL; { Ok(request.into()) }
    fn MPI_Session_toint(session: MPI_Session) -> c_int, or 0; { Ok(session.0 as c_int) }
    fn MPI_Session_fromint(session: c_int) -> MPI_Session, or MPI_SESSION_NULL; { Ok(session.into()) }
    fn MPI_Type_toint(datatype: MPI_Datatype) -> c_int, or 0; { Ok(datatype.0 as c_int) }
    fn MPI_Type_fromint(datatype: c_int) -> MPI_Datatype, or MPI_DATATYPE_NULL; { Ok(datatype.into()) }
    fn MPI_Win_toint(win: MPI_Win) -> c_int, or 0; { Ok(win.0 as c_int) }
    fn MPI_Win_fromint(win: c_int) -> MPI_Win, or MPI_WIN_NULL; { Ok(win.into()) }
}
