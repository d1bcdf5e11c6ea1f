# For scripts to read in. lg_find_launcher FLAVOR BUILD_DIR sets `launcher` to the words that start processes under that MPI, more
# of them than there are cores and as root if need be; fails, saying what is missing, if the MPI or its module is not there.
lg_find_launcher() {
    local flavor=$1 build=$2 program
    # MPI libraries keep memory to the end, in plug-ins that are gone when it is looked for.
    export ASAN_OPTIONS=${ASAN_OPTIONS:-}${ASAN_OPTIONS:+:}detect_leaks=0
    case $flavor in
    openmpi)
        program=mpirun.openmpi
        launcher=("$program" --oversubscribe)
        [ "$(id -u)" != 0 ] || launcher+=(--allow-run-as-root)
        # Containers may forbid what it wants to do first; it has other ways.
        export OMPI_MCA_btl_vader_single_copy_mechanism=${OMPI_MCA_btl_vader_single_copy_mechanism:-none}
        ;;
    mpich)
        program=mpiexec.mpich
        launcher=("$program")
        ;;
    *)
        echo "no MPI called '$flavor'" >&2
        return 1
        ;;
    esac
    if ! command -v "$program" >/dev/null || [ ! -e "$build/leapgrad-$flavor.so" ]; then
        echo "no $program, or leapgrad was built without it" >&2
        return 1
    fi
}
