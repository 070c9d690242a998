#include "transport/ucx/ucx_memory_region.h"

#include "transport/ucx/locked_memory.h"
#include "transport/ucx/read_only_registration.h"
#include "transport/ucx/ucx_key_format.h"
#include "transport/ucx/ucx_log.h"
#include "transport/ucx/ucx_status.h"

#include <fmt/format.h>
#include <ucp/api/ucp_compat.h>

namespace sluice::transport {
namespace {

void set_memory(ucp_mem_map_params_t& params, std::span<std::byte> memory) {
    params.field_mask |= UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    params.address = memory.data();
    params.length = memory.size();
}

void set_rights(ucp_mem_map_params_t& params, Access access) {
    params.field_mask |= UCP_MEM_MAP_PARAM_FIELD_PROT;
    params.prot = UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE;
    if (access == Access::kRemoteRead) {
        params.prot |= UCP_MEM_MAP_PROT_REMOTE_READ;
    }
}

// Not ucs_memory_type_names: a variable of another library version has another size, which the dynamic linker reports
// before we can refuse that version.
const char* to_string(ucs_memory_type_t type) {
    switch (type) {
        case UCS_MEMORY_TYPE_HOST:
            return "host";
        case UCS_MEMORY_TYPE_CUDA:
            return "cuda";
        case UCS_MEMORY_TYPE_CUDA_MANAGED:
            return "cuda managed";
        default:
            return "another kind of";
    }
}

}  // namespace

ucs_memory_type_t to_ucs(MemoryKind kind) {
    return kind == MemoryKind::kCuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
}

Result<std::unique_ptr<MemoryRegion>> UcxMemoryRegion::open(const UcxContext& context, ReadableRegions& readable,
                                                            std::span<std::byte> memory, MemoryKind kind,
                                                            Access access) {
    std::unique_ptr<UcxMemoryRegion> region(new UcxMemoryRegion(context.handle(), readable, memory, kind));
    if (!memory.empty()) {
        if (kind == MemoryKind::kCuda && (context.memory_types() & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) == 0) {
            return invalid_argument(fmt::format(
                "{} bytes of cuda memory are host memory to this UCX, which has no CUDA: use one that has (UCX_ROOT, "
                "UCX_TLS with cuda), or go through host memory (--staged)",
                memory.size()));
        }
        take_ucx_error();
        // The memory type is left for UCX to detect: what it detects is how it will treat the memory, whatever we say.
        ucp_mem_map_params_t params{};
        set_memory(params, memory);
        set_rights(params, access);
        ucp_mem_h handle = nullptr;
        ucs_status_t status = UCS_OK;
        {
            const ReadOnlyRegistration read_only;
            status = ucp_mem_map(context.handle(), &params, &handle);
        }
        if (status != UCS_OK) {
            return from_ucs(status, fmt::format("registering {} bytes of {} memory{}{}", memory.size(),
                                                sluice::to_string(kind), take_ucx_error(), locked_memory_hint()));
        }
        region->handle_.reset(handle);
        ucp_mem_attr_t attributes{};
        attributes.field_mask = UCP_MEM_ATTR_FIELD_MEM_TYPE;
        if (status = ucp_mem_query(handle, &attributes); status != UCS_OK) {
            return from_ucs(status, "asking UCX for the type of registered memory");
        }
        if (attributes.mem_type != to_ucs(kind)) {
            return invalid_argument(fmt::format(
                "{} bytes that are said to be {} memory are {} memory to UCX; register the memory as what it is",
                memory.size(), sluice::to_string(kind), to_string(attributes.mem_type)));
        }
    }
    if (access == Access::kRemoteRead) {
        SLUICE_RETURN_IF_ERROR(region->pack(context.handle()));
    }
    return std::unique_ptr<MemoryRegion>(std::move(region));
}

UcxMemoryRegion::~UcxMemoryRegion() {
    if (id_ != 0) {
        readable_.remove(id_);
    }
}

Status UcxMemoryRegion::pack(ucp_context_h context) {
    id_ = readable_.add(*this);
    UcxKeyFields fields;
    fields.id = id_;
    fields.address = reinterpret_cast<std::uint64_t>(memory_.data());
    fields.size = memory_.size();
    fields.kind = kind_;
    if (handle_ == nullptr) {
        packed_key_ = encode_key(fields);
        return ok_status();
    }
    void* buffer = nullptr;
    std::size_t size = 0;
    if (const ucs_status_t status = ucp_rkey_pack(context, handle(), &buffer, &size); status != UCS_OK) {
        return from_ucs(status, "packing a memory key" + take_ucx_error());
    }
    fields.ucx = {static_cast<const std::byte*>(buffer), size};
    packed_key_ = encode_key(fields);
    ucp_rkey_buffer_release(buffer);
    return ok_status();
}

}  // namespace sluice::transport
