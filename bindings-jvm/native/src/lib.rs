//! The native part of Forelock's Maven artifact.
