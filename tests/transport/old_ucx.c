/* Stands for a UCX that is too old: has the one function that every version has, and nothing that came later. */
void ucp_get_version(unsigned* major, unsigned* minor, unsigned* release) {
    *major = 1;
    *minor = 21;
    *release = 7;
}
