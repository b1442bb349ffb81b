!> Orcheck for Fortran 2018. Compiled by the user's own compiler, together with orcheck_fortran.c, in one line:
!!
!!   mpif90 $(pkg-config --variable=fortran orcheck) heat.f90 $(pkg-config --cflags --libs orcheck) -o heat
!!
!! tidy: long because a program compiles one file
!!
!!   use orcheck
!!   type(orc_session_t) :: s
!!   real(real64), allocatable, target :: u(:, :)       ! target: see below
!!   integer :: step                                    ! or integer(int64)
!!   logical :: due
!!   call orc_mpi_open(s, MPI_COMM_WORLD, 'heat', 'every_s = 600')
!!   call orc_protect(s, 'u', u)
!!   call orc_find(s, step)                             ! 0: nothing to restart from
!!   if (step > 0) call orc_restart(s, step)            ! step: the one that u now holds
!!   do while (step < last .and. .not. orc_should_stop(s))
!!     step = step + 1
!!     call advance(u)
!!     call orc_due(s, step, due)
!!     if (due) call orc_checkpoint(s, step)            ! returns when u is copied
!!   end do
!!   call orc_close(s, 300d0)                           ! waits until all is safe, at most 300 s
!!
!! Errors. Every call takes an optional argument ierr, which gets its status. Without it an error prints
!! orc_message() and ends the program, like allocate without stat=: by MPI_Abort where MPI runs, elsewhere by
!! error stop. This module is part of your program; the library itself never prints or exits. ORC_NOT_FOUND
!! from orc_find, orc_find_step and orc_safe_step is an answer, not an error: the step is then 0 (a program
!! that takes a checkpoint of step 0 needs ierr).
!!
!! An array whose size changes is allocated with the stored size. ORC_AGAIN: the newest step was damaged, and
!! the older one used in its place has another size:
!!
!!   n = [1000_int64]                                     ! size of a fresh start; integer(int64), allocatable :: n(:)
!!   call orc_find(s, step, ierr)
!!   resumes = ierr == ORC_OK
!!   do
!!     if (resumes) call orc_stored(s, 'p', local=n)
!!     if (allocated(p)) deallocate (p)
!!     allocate (p(n(1)))
!!     call orc_protect(s, 'p', p)
!!     if (resumes) call orc_restart(s, step, ierr)
!!     if (ierr /= ORC_AGAIN) exit
!!   end do
!!   if (ierr /= ORC_OK .and. ierr /= ORC_NOT_FOUND) error stop orc_message()
!!
!! What each call does, which calls are collective, and their errors: see orcheck.h. Steps are integer(int32) or
!! integer(int64), of one kind within a call; shapes and lengths are integer(int64), times real(real64) in
!! seconds, ierr and flags default integers. Trailing blanks of names are dropped. The communicator is a default
!! integer: pass comm%MPI_VAL when using mpi_f08.
!!
!! Shapes. orc_protect stores an integer, real or complex array of up to eight dimensions with its shape. Here shapes
!! are in Fortran's order, first index first, and offsets count from zero; C and `orcheck show` list the dimensions
!! of the same array in reverse order. Arrays of nine to fifteen dimensions, logicals, characters and
!! derived types are stored as flat memory. Version 0.1.0 stored all arrays that way: they can still be restored, and
!! orc_stored gives one dimension for them.
!!
!! Give what you protect the target (or asynchronous) attribute and keep it alive: the library reads
!! and writes it in later calls that do not mention it. Protect an allocatable again after it has
!! been reallocated. A section with gaps is refused by orc_protect instead of being copied to a
!! temporary; orc_protect_array takes it as it is laid out in memory. One case the library cannot see:
!! gfortran copies a component of an array of a derived type (p%x, z%re) to a temporary before the
!! call. Protect p itself; -Warray-temporaries finds such calls.
module orcheck
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int32, int64, real64, error_unit, output_unit
  implicit none
  private

  integer, parameter, public :: ORC_OK = 0, ORC_INVALID = 1, ORC_NOT_FOUND = 2, &
    ORC_UNAVAILABLE = 3, ORC_NO_SPACE = 4, ORC_CORRUPT = 5, ORC_FENCED = 6, &
    ORC_UNSUPPORTED = 7, ORC_INTERNAL = 8, ORC_AGAIN = 9
  integer, parameter, public :: ORC_EXACTLY = 1, ORC_OLDER_THAN = 2
  integer, parameter, public :: ORC_PROCESS = 1, ORC_NODE = 2, ORC_PEERS = 3, ORC_GLOBAL = 4
  integer, parameter, public :: ORC_BYTES = 0, ORC_I8 = 1, ORC_I16 = 2, ORC_I32 = 3, &
    ORC_I64 = 4, ORC_U8 = 5, ORC_U16 = 6, ORC_U32 = 7, ORC_U64 = 8, ORC_F16 = 9, ORC_F32 = 10, &
    ORC_F64 = 11, ORC_BF16 = 12, ORC_C64 = 13, ORC_C128 = 14
  integer, parameter, public :: ORC_OPTIONAL = 1, ORC_SAME = 2, ORC_CPU_WRITES_ONLY = 4, ORC_OVERLAP = 16

  !> A session; opened by orc_open or orc_mpi_open.
  type, public :: orc_session_t
    type(c_ptr) :: handle = c_null_ptr
  end type

  type, bind(c) :: box_t ! orc_box of orcheck.h
    type(c_ptr) :: address = c_null_ptr
    integer(c_size_t) :: struct_size = 0
    integer(c_int) :: dtype = 0, ndim = 0
    integer(c_int64_t) :: global(8) = 0, offset(8) = 0, local(8) = 0, stride(8) = 0
  end type

  !> Several parts of one global array; filled by orc_add_box.
  type, public :: orc_boxes_t
    private
    type(box_t), allocatable :: boxes(:)
  end type

  !> Figures of the last checkpoint on this rank; the fields of orc_stats in orcheck.h.
  type, bind(c), public :: orc_stats_t
    integer(c_size_t) :: struct_size = 0
    integer(c_int64_t) :: step = 0
    real(c_double) :: blocked_s = 0, stage_s = 0, wait_s = 0
    integer(c_int64_t) :: staged_bytes = 0, pool_bytes = 0, pool_used_bytes = 0
    integer(c_int64_t) :: committed_node_step = 0, committed_global_step = 0
    real(c_double) :: flush_cpu_s = 0
    integer(c_int64_t) :: skipped = 0
    integer(c_int64_t) :: captured_step = 0, stored_bytes = 0, referred_bytes = 0
    integer(c_int64_t) :: tracked_bytes = 0, full_because = 0
    integer(c_int64_t) :: flushed_bytes = 0, file_bytes = 0
    real(c_double) :: interval_s = 0
    !> Lost steps by cause (0: any, else a status), then by level.
    integer(c_int64_t) :: lost_steps(0:8, 0:4) = 0
    !> 1: this session has no checkpoints (option enabled).
    integer(c_int64_t) :: disabled = 0
    integer(c_int64_t) :: routed_bytes = 0
    !> Bytes that the restart took from memory which the agent of this node kept.
    integer(c_int64_t) :: memory_bytes = 0
    real(c_double) :: agree_s = 0
    integer(c_int64_t) :: checkpoints = 0
    real(c_double) :: blocked_sum_s = 0, agree_sum_s = 0, stage_sum_s = 0, wait_sum_s = 0
    integer(c_int64_t) :: pool_memory_bytes = 0
  end type

  integer, parameter, public :: ORC_EVENT_SAFE = 1, ORC_EVENT_LOST = 2
  !> What became of a checkpoint at one level; the fields of orc_event in orcheck.h. Its text: orc_event_text.
  type, bind(c), public :: orc_event_t
    integer(c_size_t) :: struct_size
    integer(c_int) :: kind
    integer(c_int64_t) :: step
    integer(c_int) :: level, status
    type(c_ptr) :: text
  end type

  abstract interface
    !> What orc_watch calls. It may call orc_event_text, and nothing else of this module.
    subroutine orc_on_event(ctx, event) bind(c)
      import
      type(c_ptr), value :: ctx
      type(orc_event_t), intent(in) :: event
    end subroutine
  end interface
  public :: orc_on_event, orc_watch, orc_event_text, orc_safe_step

  public :: orc_open, orc_mpi_open, orc_close, orc_abandon, orc_message
  public :: orc_protect, orc_protect_array, orc_protect_list, orc_unprotect, orc_alloc, orc_free
  public :: orc_add_box, orc_protect_boxes
  public :: orc_due, orc_request, orc_should_stop, orc_lend, orc_lent_done
  public :: orc_checkpoint, orc_wait
  public :: orc_find, orc_stored, orc_restart, orc_route, orc_stats_read
  public :: orc_find_step, orc_reject, orc_restart_region

  !> global and offset, and steps, as integer(int32), which default integers are, or as integer(int64).
  interface orc_protect_array
    module procedure protect_array_int32, protect_array_int64
  end interface
  interface orc_add_box
    module procedure add_box_int32, add_box_int64
  end interface
  interface orc_due
    module procedure due_int32, due_int64
  end interface
  interface orc_checkpoint
    module procedure checkpoint_int32, checkpoint_int64
  end interface
  interface orc_wait
    module procedure wait_int32, wait_int64
  end interface
  interface orc_find
    module procedure find_int32, find_int64
  end interface
  interface orc_restart
    module procedure restart_int32, restart_int64
  end interface
  interface orc_find_step
    module procedure find_step_int32, find_step_int32_int64, find_step_int64
  end interface
  interface orc_reject
    module procedure reject_int32, reject_int64
  end interface
  interface orc_safe_step
    module procedure safe_step_int32, safe_step_int64
  end interface

  interface
    function c_open(s, job, options) bind(c, name='orc_fortran_open')
      import
      type(c_ptr), intent(out) :: s
      character(kind=c_char), intent(in) :: job(*), options(*)
      integer(c_int) :: c_open
    end function
    function c_mpi_open(s, comm, job, options) bind(c, name='orc_fortran_mpi_open')
      import
      type(c_ptr), intent(out) :: s
      integer(c_int), value :: comm
      character(kind=c_char), intent(in) :: job(*), options(*)
      integer(c_int) :: c_mpi_open
    end function
    function c_close(s, timeout_s) bind(c, name='orc_close')
      import
      type(c_ptr), value :: s
      real(c_double), value :: timeout_s
      integer(c_int) :: c_close
    end function
    subroutine c_abandon(s) bind(c, name='orc_abandon')
      import
      type(c_ptr), value :: s
    end subroutine
    function c_message() bind(c, name='orc_message')
      import
      type(c_ptr) :: c_message
    end function
    function c_refuse(status, text) bind(c, name='orc_refuse')
      import
      integer(c_int), value :: status
      character(kind=c_char), intent(in) :: text(*)
      integer(c_int) :: c_refuse
    end function
    subroutine c_abort() bind(c, name='orc_fortran_abort')
    end subroutine
    function c_strlen(text) bind(c, name='strlen')
      import
      type(c_ptr), value :: text
      integer(c_size_t) :: c_strlen
    end function
    function c_protect(s, name, u, flags) bind(c, name='orc_fortran_protect')
      import
      type(c_ptr), value :: s
      character(kind=c_char), intent(in) :: name(*)
      type(*), dimension(..), target, intent(inout) :: u
      integer(c_int), value :: flags
      integer(c_int) :: c_protect
    end function
    function c_protect_array(s, name, u, global, nglobal, offset, noffset, flags) &
      bind(c, name='orc_fortran_protect_array')
      import
      type(c_ptr), value :: s
      character(kind=c_char), intent(in) :: name(*)
      type(*), dimension(..), target, intent(inout) :: u
      integer(c_int64_t), intent(in) :: global(*), offset(*)
      integer(c_int), value :: nglobal, noffset, flags
      integer(c_int) :: c_protect_array
    end function
    function c_box(box, u, global, nglobal, offset, noffset) bind(c, name='orc_fortran_box')
      import
      type(box_t), intent(inout) :: box
      type(*), dimension(..), target, intent(inout) :: u
      integer(c_int64_t), intent(in) :: global(*), offset(*)
      integer(c_int), value :: nglobal, noffset
      integer(c_int) :: c_box
    end function
    function c_protect_boxes(s, name, boxes, n, flags) bind(c, name='orc_protect_boxes')
      import
      type(c_ptr), value :: s
      character(kind=c_char), intent(in) :: name(*)
      type(box_t), intent(in) :: boxes(*)
      integer(c_size_t), value :: n
      integer(c_int), value :: flags
      integer(c_int) :: c_protect_boxes
    end function
    function c_protect_list(s, name, u, flags) bind(c, name='orc_fortran_protect_list')
      import
      type(c_ptr), value :: s
      character(kind=c_char), intent(in) :: name(*)
      type(*), dimension(..), target, intent(inout) :: u
      integer(c_int), value :: flags
      integer(c_int) :: c_protect_list
    end function
    function c_unprotect(s, name) bind(c, name='orc_unprotect')
      import
      type(c_ptr), value :: s
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int) :: c_unprotect
    end function
    function c_alloc(s, len_bytes, address) bind(c, name='orc_alloc')
      import
      type(c_ptr), value :: s
      integer(c_size_t), value :: len_bytes
      type(c_ptr), intent(out) :: address
      integer(c_int) :: c_alloc
    end function
    function c_free(s, address) bind(c, name='orc_free')
      import
      type(c_ptr), value :: s, address
      integer(c_int) :: c_free
    end function
    function c_due(s, step, due) bind(c, name='orc_due')
      import
      type(c_ptr), value :: s
      integer(c_int64_t), value :: step
      integer(c_int), intent(out) :: due
      integer(c_int) :: c_due
    end function
    subroutine c_request(s, stop_after) bind(c, name='orc_request')
      import
      type(c_ptr), value :: s
      integer(c_int), value :: stop_after
    end subroutine
    function c_should_stop(s) bind(c, name='orc_should_stop')
      import
      type(c_ptr), value :: s
      integer(c_int) :: c_should_stop
    end function
    function c_lend(s, name) bind(c, name='orc_lend')
      import
      type(c_ptr), value :: s
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int) :: c_lend
    end function
    function c_lent_done(s, name, timeout_s) bind(c, name='orc_lent_done')
      import
      type(c_ptr), value :: s
      character(kind=c_char), intent(in) :: name(*)
      real(c_double), value :: timeout_s
      integer(c_int) :: c_lent_done
    end function
    function c_checkpoint(s, step) bind(c, name='orc_checkpoint')
      import
      type(c_ptr), value :: s
      integer(c_int64_t), value :: step
      integer(c_int) :: c_checkpoint
    end function
    function c_checkpoint_at(s, step, level) bind(c, name='orc_checkpoint_at')
      import
      type(c_ptr), value :: s
      integer(c_int64_t), value :: step
      integer(c_int), value :: level
      integer(c_int) :: c_checkpoint_at
    end function
    function c_wait(s, step, level, timeout_s) bind(c, name='orc_wait')
      import
      type(c_ptr), value :: s
      integer(c_int64_t), value :: step
      integer(c_int), value :: level
      real(c_double), value :: timeout_s
      integer(c_int) :: c_wait
    end function
    function c_find(s, step) bind(c, name='orc_find')
      import
      type(c_ptr), value :: s
      integer(c_int64_t), intent(out) :: step
      integer(c_int) :: c_find
    end function
    function c_stored(s, name, dtype, ndim, global, offset, local, len_bytes) &
      bind(c, name='orc_fortran_stored')
      import
      type(c_ptr), value :: s
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), intent(out) :: dtype, ndim
      integer(c_int64_t), intent(out) :: global(*), offset(*), local(*), len_bytes
      integer(c_int) :: c_stored
    end function
    function c_restart(s, step) bind(c, name='orc_restart')
      import
      type(c_ptr), value :: s
      integer(c_int64_t), intent(out) :: step
      integer(c_int) :: c_restart
    end function
    function c_find_step(s, how, step, found) bind(c, name='orc_find_step')
      import
      type(c_ptr), value :: s
      integer(c_int), value :: how
      integer(c_int64_t), value :: step
      integer(c_int64_t), intent(out) :: found
      integer(c_int) :: c_find_step
    end function
    function c_reject(s, step) bind(c, name='orc_reject')
      import
      type(c_ptr), value :: s
      integer(c_int64_t), value :: step
      integer(c_int) :: c_reject
    end function
    function c_watch(s, on_event, ctx) bind(c, name='orc_watch')
      import
      type(c_ptr), value :: s
      type(c_funptr), value :: on_event
      type(c_ptr), value :: ctx
      integer(c_int) :: c_watch
    end function
    function c_safe_step(s, level, step) bind(c, name='orc_safe_step')
      import
      type(c_ptr), value :: s
      integer(c_int), value :: level
      integer(c_int64_t), intent(out) :: step
      integer(c_int) :: c_safe_step
    end function
    function c_restart_region(s, name) bind(c, name='orc_restart_region')
      import
      type(c_ptr), value :: s
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int) :: c_restart_region
    end function
    function c_route(s, name, flags, path, cap) bind(c, name='orc_route_file')
      import
      type(c_ptr), value :: s
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: flags
      character(kind=c_char), intent(out) :: path(*)
      integer(c_size_t), value :: cap
      integer(c_int) :: c_route
    end function
    function c_stats_read(s, stats) bind(c, name='orc_stats_read')
      import
      type(c_ptr), value :: s
      type(orc_stats_t), intent(inout) :: stats
      integer(c_int) :: c_stats_read
    end function
  end interface

contains

  !> Opens a session of one rank. options: TOML text, or ''.
  subroutine orc_open(s, job, options, ierr)
    type(orc_session_t), intent(out) :: s
    character(len=*), intent(in) :: job, options
    integer, intent(out), optional :: ierr
    call conclude(c_open(s%handle, text(job), text(options)), ierr)
  end subroutine

  !> Opens a session for the ranks of a communicator. Collective.
  subroutine orc_mpi_open(s, comm, job, options, ierr)
    type(orc_session_t), intent(out) :: s
    integer, intent(in) :: comm
    character(len=*), intent(in) :: job, options
    integer, intent(out), optional :: ierr
    call conclude(c_mpi_open(s%handle, int(comm, c_int), text(job), text(options)), ierr)
  end subroutine

  !> Waits until all is safe, and closes. Collective; before MPI_Finalize.
  subroutine orc_close(s, timeout_s, ierr)
    type(orc_session_t), intent(inout) :: s
    real(real64), intent(in) :: timeout_s
    integer, intent(out), optional :: ierr
    integer(c_int) :: status
    status = c_close(s%handle, timeout_s)
    s%handle = c_null_ptr
    call conclude(status, ierr)
  end subroutine

  !> Gives the session up at once.
  subroutine orc_abandon(s)
    type(orc_session_t), intent(inout) :: s
    call c_abandon(s%handle)
    s%handle = c_null_ptr
  end subroutine

  !> What the last call of this thread says: an error, a warning, or ''.
  function orc_message() result(message)
    character(len=:), allocatable :: message
    message = copied(c_message())
  end function

  !> Names a variable or a whole (contiguous) array, of any type and rank, as a region.
  subroutine orc_protect(s, name, u, ierr, flags)
    type(orc_session_t), intent(in) :: s
    character(len=*), intent(in) :: name
    type(*), dimension(..), target, intent(inout) :: u
    integer, intent(out), optional :: ierr
    integer, intent(in), optional :: flags
    call conclude(c_protect(s%handle, text(name), u, or_zero(flags)), ierr)
  end subroutine

  subroutine protect_array_int64(s, name, u, global, offset, ierr, flags)
    type(orc_session_t), intent(in) :: s
    character(len=*), intent(in) :: name
    type(*), dimension(..), target, intent(inout) :: u
    integer(int64), intent(in) :: global(:), offset(:)
    integer, intent(out), optional :: ierr
    integer, intent(in), optional :: flags
    call conclude(c_protect_array(s%handle, text(name), u, global, size(global, kind=c_int), offset, &
      size(offset, kind=c_int), or_zero(flags)), ierr)
  end subroutine

  subroutine protect_array_int32(s, name, u, global, offset, ierr, flags)
    type(orc_session_t), intent(in) :: s
    character(len=*), intent(in) :: name
    type(*), dimension(..), target, intent(inout) :: u
    integer(int32), intent(in) :: global(:), offset(:)
    integer, intent(out), optional :: ierr
    integer, intent(in), optional :: flags
    call protect_array_int64(s, name, u, int(global, int64), int(offset, int64), ierr, flags)
  end subroutine

  !> Adds a part of a global array to boxes; u may be a section, as for orc_protect_array. Local.
  subroutine add_box_int64(boxes, u, global, offset, ierr)
    type(orc_boxes_t), intent(inout) :: boxes
    type(*), dimension(..), target, intent(inout) :: u
    integer(int64), intent(in) :: global(:), offset(:)
    integer, intent(out), optional :: ierr
    type(box_t) :: box
    integer(c_int) :: status
    status = c_box(box, u, global, size(global, kind=c_int), offset, size(offset, kind=c_int))
    if (status == ORC_OK) then
      if (.not. allocated(boxes%boxes)) allocate (boxes%boxes(0))
      boxes%boxes = [boxes%boxes, box]
    end if
    call conclude(status, ierr)
  end subroutine

  subroutine add_box_int32(boxes, u, global, offset, ierr)
    type(orc_boxes_t), intent(inout) :: boxes
    type(*), dimension(..), target, intent(inout) :: u
    integer(int32), intent(in) :: global(:), offset(:)
    integer, intent(out), optional :: ierr
    call add_box_int64(boxes, u, int(global, int64), int(offset, int64), ierr)
  end subroutine

  !> Names several parts of one global array as one region: block-cyclic and irregular parts. A rank without elements
  !> adds one section of size zero.
  subroutine orc_protect_boxes(s, name, boxes, ierr, flags)
    type(orc_session_t), intent(in) :: s
    character(len=*), intent(in) :: name
    type(orc_boxes_t), intent(in) :: boxes
    integer, intent(out), optional :: ierr
    integer, intent(in), optional :: flags
    integer(c_int) :: status
    if (allocated(boxes%boxes)) then
      status = c_protect_boxes(s%handle, text(name), boxes%boxes, size(boxes%boxes, kind=c_size_t), or_zero(flags))
    else
      status = c_refuse(int(ORC_INVALID, c_int), 'orc_protect_boxes: region "' // trim(name) // &
        '" has no box. Next: call orc_add_box for each, with a section of size zero for none' // c_null_char)
    end if
    call conclude(status, ierr)
  end subroutine

  !> This rank's items of a list, which the last dimension of u counts: u(:n) or u(:, :n). A restart redistributes the
  !> items of all ranks, to any number of ranks; orc_stored gives their number (the last of global) and a share (of local).
  subroutine orc_protect_list(s, name, u, ierr, flags)
    type(orc_session_t), intent(in) :: s
    character(len=*), intent(in) :: name
    type(*), dimension(..), target, intent(inout) :: u
    integer, intent(out), optional :: ierr
    integer, intent(in), optional :: flags
    call conclude(c_protect_list(s%handle, text(name), u, or_zero(flags)), ierr)
  end subroutine

  !> Takes a region out of all following checkpoints.
  subroutine orc_unprotect(s, name, ierr)
    type(orc_session_t), intent(in) :: s
    character(len=*), intent(in) :: name
    integer, intent(out), optional :: ierr
    call conclude(c_unprotect(s%handle, text(name)), ierr)
  end subroutine

  !> Pool memory; make it an array with c_f_pointer.
  subroutine orc_alloc(s, len_bytes, address, ierr)
    type(orc_session_t), intent(in) :: s
    integer(int64), intent(in) :: len_bytes
    type(c_ptr), intent(out) :: address
    integer, intent(out), optional :: ierr
    call conclude(c_alloc(s%handle, int(len_bytes, c_size_t), address), ierr)
  end subroutine

  subroutine orc_free(s, address, ierr)
    type(orc_session_t), intent(in) :: s
    type(c_ptr), intent(in) :: address
    integer, intent(out), optional :: ierr
    call conclude(c_free(s%handle, address), ierr)
  end subroutine

  !> Whether a checkpoint should be taken after this step. Collective.
  subroutine due_int64(s, step, due, ierr)
    type(orc_session_t), intent(in) :: s
    integer(int64), intent(in) :: step
    logical, intent(out) :: due
    integer, intent(out), optional :: ierr
    integer(c_int) :: answer, status
    answer = 0
    status = c_due(s%handle, step, answer)
    due = answer /= 0
    call conclude(status, ierr)
  end subroutine

  subroutine due_int32(s, step, due, ierr)
    type(orc_session_t), intent(in) :: s
    integer(int32), intent(in) :: step
    logical, intent(out) :: due
    integer, intent(out), optional :: ierr
    call due_int64(s, int(step, int64), due, ierr)
  end subroutine

  !> Asks for a checkpoint, and with stop_after for the end of the program after it.
  subroutine orc_request(s, stop_after)
    type(orc_session_t), intent(in) :: s
    logical, intent(in) :: stop_after
    call c_request(s%handle, merge(1_c_int, 0_c_int, stop_after))
  end subroutine

  function orc_should_stop(s) result(stop_now)
    type(orc_session_t), intent(in) :: s
    logical :: stop_now
    stop_now = c_should_stop(s%handle) /= 0
  end function

  !> The next checkpoint takes this region by reference; do not write it until orc_lent_done.
  subroutine orc_lend(s, name, ierr)
    type(orc_session_t), intent(in) :: s
    character(len=*), intent(in) :: name
    integer, intent(out), optional :: ierr
    call conclude(c_lend(s%handle, text(name)), ierr)
  end subroutine

  !> Waits until a lent region may be written again; ORC_UNAVAILABLE while it may not.
  subroutine orc_lent_done(s, name, timeout_s, ierr)
    type(orc_session_t), intent(in) :: s
    character(len=*), intent(in) :: name
    real(real64), intent(in) :: timeout_s
    integer, intent(out), optional :: ierr
    call conclude(c_lent_done(s%handle, text(name), timeout_s), ierr)
  end subroutine

  !> Takes a checkpoint, with level= one that goes at least there; returns when it is staged. Collective.
  subroutine checkpoint_int64(s, step, ierr, level)
    type(orc_session_t), intent(in) :: s
    integer(int64), intent(in) :: step
    integer, intent(out), optional :: ierr
    integer, intent(in), optional :: level
    if (present(level)) then
      call conclude(c_checkpoint_at(s%handle, step, int(level, c_int)), ierr)
    else
      call conclude(c_checkpoint(s%handle, step), ierr)
    end if
  end subroutine

  subroutine checkpoint_int32(s, step, ierr, level)
    type(orc_session_t), intent(in) :: s
    integer(int32), intent(in) :: step
    integer, intent(out), optional :: ierr
    integer, intent(in), optional :: level
    call checkpoint_int64(s, int(step, int64), ierr, level)
  end subroutine

  !> Waits until a step is committed at a level.
  subroutine wait_int64(s, step, level, timeout_s, ierr)
    type(orc_session_t), intent(in) :: s
    integer(int64), intent(in) :: step
    integer, intent(in) :: level
    real(real64), intent(in) :: timeout_s
    integer, intent(out), optional :: ierr
    call conclude(c_wait(s%handle, step, int(level, c_int), timeout_s), ierr)
  end subroutine

  subroutine wait_int32(s, step, level, timeout_s, ierr)
    type(orc_session_t), intent(in) :: s
    integer(int32), intent(in) :: step
    integer, intent(in) :: level
    real(real64), intent(in) :: timeout_s
    integer, intent(out), optional :: ierr
    call wait_int64(s, int(step, int64), level, timeout_s, ierr)
  end subroutine

  !> The newest committed step; ORC_NOT_FOUND for a fresh start (step is 0 then). Collective.
  subroutine find_int64(s, step, ierr)
    type(orc_session_t), intent(in) :: s
    integer(int64), intent(out) :: step
    integer, intent(out), optional :: ierr
    step = 0
    call conclude(c_find(s%handle, step), ierr, ORC_NOT_FOUND)
  end subroutine

  subroutine find_int32(s, step, ierr)
    type(orc_session_t), intent(in) :: s
    integer(int32), intent(out) :: step
    integer, intent(out), optional :: ierr
    integer(int64) :: wide
    integer(c_int) :: status
    wide = 0
    status = c_find(s%handle, wide)
    call narrow('orc_find', wide, step, status)
    call conclude(status, ierr, ORC_NOT_FOUND)
  end subroutine

  !> Type, shape and length of a region of the step that orc_find found.
  subroutine orc_stored(s, name, ierr, local, global, offset, dtype, len_bytes)
    type(orc_session_t), intent(in) :: s
    character(len=*), intent(in) :: name
    integer, intent(out), optional :: ierr
    integer(int64), allocatable, intent(out), optional :: local(:), global(:), offset(:)
    integer, intent(out), optional :: dtype
    integer(int64), intent(out), optional :: len_bytes
    integer(c_int64_t) :: c_global(8), c_offset(8), c_local(8), c_len
    integer(c_int) :: c_dtype, ndim, status
    status = c_stored(s%handle, text(name), c_dtype, ndim, c_global, c_offset, c_local, c_len)
    if (present(local)) local = c_local(:ndim)
    if (present(global)) global = c_global(:ndim)
    if (present(offset)) offset = c_offset(:ndim)
    if (present(dtype)) dtype = c_dtype
    if (present(len_bytes)) len_bytes = c_len
    call conclude(status, ierr)
  end subroutine

  !> Fills all regions; step gets the step really restored. ORC_AGAIN: see above. Collective.
  subroutine restart_int64(s, step, ierr)
    type(orc_session_t), intent(in) :: s
    integer(int64), intent(out) :: step
    integer, intent(out), optional :: ierr
    step = 0
    call conclude(c_restart(s%handle, step), ierr)
  end subroutine

  subroutine restart_int32(s, step, ierr)
    type(orc_session_t), intent(in) :: s
    integer(int32), intent(out) :: step
    integer, intent(out), optional :: ierr
    integer(int64) :: wide
    integer(c_int) :: status
    wide = 0
    status = c_restart(s%handle, wide)
    call narrow('orc_restart', wide, step, status)
    call conclude(status, ierr)
  end subroutine

  !> The checkpoint of a step (ORC_EXACTLY) or the newest older than it (ORC_OLDER_THAN). Collective.
  subroutine find_step_int64(s, how, step, found, ierr)
    type(orc_session_t), intent(in) :: s
    integer, intent(in) :: how
    integer(int64), intent(in) :: step
    integer(int64), intent(out) :: found
    integer, intent(out), optional :: ierr
    found = 0
    call conclude(c_find_step(s%handle, int(how, c_int), step, found), ierr, ORC_NOT_FOUND)
  end subroutine

  subroutine find_step_int32_int64(s, how, step, found, ierr)
    type(orc_session_t), intent(in) :: s
    integer, intent(in) :: how
    integer(int32), intent(in) :: step
    integer(int64), intent(out) :: found
    integer, intent(out), optional :: ierr
    call find_step_int64(s, how, int(step, int64), found, ierr)
  end subroutine

  subroutine find_step_int32(s, how, step, found, ierr)
    type(orc_session_t), intent(in) :: s
    integer, intent(in) :: how
    integer(int32), intent(in) :: step
    integer(int32), intent(out) :: found
    integer, intent(out), optional :: ierr
    integer(int64) :: wide
    integer(c_int) :: status
    wide = 0
    status = c_find_step(s%handle, int(how, c_int), int(step, int64), wide)
    call narrow('orc_find_step', wide, found, status)
    call conclude(status, ierr, ORC_NOT_FOUND)
  end subroutine

  !> Never offers the checkpoint of this step again. Collective.
  subroutine reject_int64(s, step, ierr)
    type(orc_session_t), intent(in) :: s
    integer(int64), intent(in) :: step
    integer, intent(out), optional :: ierr
    call conclude(c_reject(s%handle, step), ierr)
  end subroutine

  subroutine reject_int32(s, step, ierr)
    type(orc_session_t), intent(in) :: s
    integer(int32), intent(in) :: step
    integer, intent(out), optional :: ierr
    call reject_int64(s, int(step, int64), ierr)
  end subroutine

  !> Has on_event called for what becomes of checkpoints; without it, no longer. ctx is handed to it. Local.
  subroutine orc_watch(s, ierr, on_event, ctx)
    type(orc_session_t), intent(in) :: s
    integer, intent(out), optional :: ierr
    procedure(orc_on_event), optional :: on_event
    type(c_ptr), intent(in), optional :: ctx
    type(c_funptr) :: call
    type(c_ptr) :: handed
    call = c_null_funptr
    if (present(on_event)) call = c_funloc(on_event)
    handed = c_null_ptr
    if (present(ctx)) handed = ctx
    call conclude(c_watch(s%handle, call, handed), ierr)
  end subroutine

  !> The text of an event of a loss: step, level, cause and next step.
  function orc_event_text(event) result(message)
    type(orc_event_t), intent(in) :: event
    character(len=:), allocatable :: message
    message = copied(event%text)
  end function

  !> The newest step that is safe at a level, without waiting; ORC_NOT_FOUND: none is yet (step is 0). Local.
  subroutine safe_step_int64(s, level, step, ierr)
    type(orc_session_t), intent(in) :: s
    integer, intent(in) :: level
    integer(int64), intent(out) :: step
    integer, intent(out), optional :: ierr
    step = 0
    call conclude(c_safe_step(s%handle, int(level, c_int), step), ierr, ORC_NOT_FOUND)
  end subroutine

  subroutine safe_step_int32(s, level, step, ierr)
    type(orc_session_t), intent(in) :: s
    integer, intent(in) :: level
    integer(int32), intent(out) :: step
    integer, intent(out), optional :: ierr
    integer(int64) :: wide
    integer(c_int) :: status
    wide = 0
    status = c_safe_step(s%handle, int(level, c_int), wide)
    call narrow('orc_safe_step', wide, step, status)
    call conclude(status, ierr, ORC_NOT_FOUND)
  end subroutine

  !> Fills one region, before orc_restart. Collective.
  subroutine orc_restart_region(s, name, ierr)
    type(orc_session_t), intent(in) :: s
    character(len=*), intent(in) :: name
    integer, intent(out), optional :: ierr
    call conclude(c_restart_region(s%handle, text(name)), ierr)
  end subroutine

  !> Path of a file that the program writes itself and that becomes part of the checkpoint. With flags = ORC_OPTIONAL
  !> it may be absent: orc_restart from a checkpoint without it removes the one that is there.
  subroutine orc_route(s, name, path, ierr, flags)
    type(orc_session_t), intent(in) :: s
    character(len=*), intent(in) :: name
    character(len=:), allocatable, intent(out) :: path
    integer, intent(out), optional :: ierr
    integer, intent(in), optional :: flags
    character(kind=c_char), target :: buffer(4096)
    integer(c_int) :: status
    buffer = c_null_char
    status = c_route(s%handle, text(name), or_zero(flags), buffer, size(buffer, kind=c_size_t))
    path = copied(c_loc(buffer))
    call conclude(status, ierr)
  end subroutine

  !> Figures of the last checkpoint on this rank.
  subroutine orc_stats_read(s, stats, ierr)
    type(orc_session_t), intent(in) :: s
    type(orc_stats_t), intent(out) :: stats
    integer, intent(out), optional :: ierr
    stats%struct_size = c_sizeof(stats)
    call conclude(c_stats_read(s%handle, stats), ierr)
  end subroutine

  !> Hands the status of a call to a program that asks for it, else ends the program at an error. answer: a status that
  !> is not an error here.
  subroutine conclude(status, ierr, answer)
    integer(c_int), intent(in) :: status
    integer, intent(out), optional :: ierr
    integer, intent(in), optional :: answer
    if (present(ierr)) then
      ierr = status
      return
    end if
    if (status == ORC_OK) return
    if (present(answer)) then
      if (status == answer) return
    end if
    flush (output_unit)
    write (error_unit, '(a)') orc_message()
    flush (error_unit)
    call c_abort()
    error stop 1
  end subroutine

  !> A step that was found, as integer(int32); one that is larger is an error.
  subroutine narrow(call_name, wide, step, status)
    character(len=*), intent(in) :: call_name
    integer(int64), intent(in) :: wide
    integer(int32), intent(out) :: step
    integer(c_int), intent(inout) :: status
    character(len=20) :: number
    step = 0
    if (wide <= huge(step)) then
      step = int(wide, int32)
      return
    end if
    write (number, '(i0)') wide
    status = c_refuse(int(ORC_INVALID, c_int), call_name // ': step ' // trim(number) // &
      ' does not fit into integer(int32). Next: pass an integer(int64) as step' // c_null_char)
  end subroutine

  pure function text(given) result(terminated)
    character(len=*), intent(in) :: given
    character(len=:), allocatable :: terminated
    terminated = trim(given) // c_null_char
  end function

  pure function or_zero(flags) result(value)
    integer, intent(in), optional :: flags
    integer(c_int) :: value
    value = 0
    if (present(flags)) value = int(flags, c_int)
  end function

  function copied(address) result(string)
    type(c_ptr), intent(in) :: address
    character(len=:), allocatable :: string
    character(kind=c_char), pointer :: chars(:)
    integer(c_size_t) :: i, length
    length = c_strlen(address)
    call c_f_pointer(address, chars, [length])
    allocate (character(len=length) :: string)
    do i = 1, length
      string(i:i) = chars(i)
    end do
  end function

end module
