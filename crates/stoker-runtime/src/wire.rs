//! The gRPC messages and clients of containerd and of the Container Runtime Interface, as far as we use them.
//!
//! Generated from `proto/` by `cargo xtask gen` and committed: nobody needs a protobuf compiler to build Stoker.

#![allow(missing_docs, unreachable_pub, clippy::all)]

/// containerd's own services.
pub mod containerd {
    pub mod types {
        include!("wire/containerd.types.rs");
    }
    pub mod services {
        pub mod content {
            pub mod v1 {
                include!("wire/containerd.services.content.v1.rs");
            }
        }
        pub mod diff {
            pub mod v1 {
                include!("wire/containerd.services.diff.v1.rs");
            }
        }
        pub mod events {
            pub mod v1 {
                include!("wire/containerd.services.events.v1.rs");
            }
        }
        pub mod images {
            pub mod v1 {
                include!("wire/containerd.services.images.v1.rs");
            }
        }
        pub mod introspection {
            pub mod v1 {
                include!("wire/containerd.services.introspection.v1.rs");
            }
        }
        pub mod leases {
            pub mod v1 {
                include!("wire/containerd.services.leases.v1.rs");
            }
        }
        pub mod snapshots {
            pub mod v1 {
                include!("wire/containerd.services.snapshots.v1.rs");
            }
        }
        pub mod version {
            pub mod v1 {
                include!("wire/containerd.services.version.v1.rs");
            }
        }
    }
}

/// The Container Runtime Interface.
pub mod cri {
    include!("wire/runtime.v1.rs");

    impl std::fmt::Debug for AuthConfig {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("AuthConfig(…)")
        }
    }
}
