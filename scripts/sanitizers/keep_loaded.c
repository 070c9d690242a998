/* Linked into the programs of AddressSanitizer builds: libraries stay loaded, so that a leak at exit can be told by the
   library that made it, and suppressed by its name. Open MPI unloads its components. */
int dlclose(void* handle) {
    (void)handle;
    return 0;
}
