#pragma once

namespace sluice::transport {

/// While it lives, what UCX registers with verbs devices on this thread gets no rights for remote writes and atomics.
///
/// UCX 1.22 takes note of the rights that it is asked for (UCP_MEM_MAP_PARAM_FIELD_PROT) and then registers memory with verbs devices
/// with all of them, so that whoever has a key could write over an owner's weights. There is no setting for it. Therefore this file
/// defines the two functions of libibverbs by which UCX registers memory: the dynamic linker finds those of the program first, and they
/// pass on what they are called with, less these rights.
///
/// UCX would register memory of 4 GiB and more with mlx5 devices by threads of its own; Settings::ucx turns that off (IB_REG_MT_THRESH).
///
/// Where they are not found first (Sluice within a shared library that is loaded locally), registrations are as UCX makes them.
class ReadOnlyRegistration {
public:
    ReadOnlyRegistration();
    ~ReadOnlyRegistration();
    ReadOnlyRegistration(const ReadOnlyRegistration&) = delete;
    ReadOnlyRegistration& operator=(const ReadOnlyRegistration&) = delete;
};

}  // namespace sluice::transport
